/* SPDX-License-Identifier: Apache-2.0
 * An empty program, linked with whole libraries. */
int main(void)
{
	return 0;
}
