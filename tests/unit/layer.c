/* SPDX-License-Identifier: Apache-2.0
 * A program of one layer of the daemon and the layers below it. The test is that it links. */
int main(void)
{
	return 0;
}
