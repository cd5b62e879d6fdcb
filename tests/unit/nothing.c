/* SPDX-License-Identifier: Apache-2.0
 * A program of what it is linked with, whole. */
int main(void)
{
	return 0;
}
