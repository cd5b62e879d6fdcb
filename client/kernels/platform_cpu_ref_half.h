/* SPDX-License-Identifier: Apache-2.0
 * Part of platform_cpu_ref.h: 16-bit floats. */
#ifndef KERNELS_PLATFORM_CPU_REF_HALF_H
#define KERNELS_PLATFORM_CPU_REF_HALF_H

DEVICE uint32_t float_bits(float f)
{
	uint32_t u;
	memcpy(&u, &f, sizeof(u));
	return u;
}

DEVICE float bits_float(uint32_t u)
{
	float f;
	memcpy(&f, &u, sizeof(f));
	return f;
}

DEVICE float half_float(uint16_t h)
{
	const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
	if (rest >= 0x7c00)
		return bits_float(sign | 0x7f800000 | rest << 13);
	/* 2^112 times the value of these bits as a float */
	return bits_float(sign | float_bits(bits_float(rest << 13) * 0x1p112f));
}

/* Rounds to nearest, ties to even. */
DEVICE uint16_t float_half(float f)
{
	const uint32_t u = float_bits(f), sign = u >> 16 & 0x8000, rest = u & 0x7fffffff;
	if (rest > 0x7f800000)
		return (uint16_t)(sign | 0x7fff);
	if (rest >= 0x477ff000)
		return (uint16_t)(sign | 0x7c00);
	if (rest < 0x38800000) /* below 2^-14: the lowest bit of the sum is that of the half */
		return (uint16_t)(sign | (float_bits(bits_float(rest) + 0.5f) - 0x3f000000));
	return (uint16_t)(sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}

#endif
