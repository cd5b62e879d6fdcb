/* SPDX-License-Identifier: Apache-2.0
 * A program of one layer of the daemon and those below it: that it links is the test. */
int main(void)
{
	return 0;
}
