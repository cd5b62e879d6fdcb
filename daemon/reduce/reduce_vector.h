/* SPDX-License-Identifier: Apache-2.0
 * One vector register of the instruction set this file is compiled for: types, and loads and stores
 * that are whole, partial, or bypass the caches. */
#ifndef REDUCE_VECTOR_H
#define REDUCE_VECTOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#if defined(__AVX512BW__)
#define VEC_BYTES 64
#elif defined(__AVX2__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif

#define VEC_INLINE static inline __attribute__((always_inline))
#define VEC_TYPE   __attribute__((vector_size(VEC_BYTES)))

typedef uint8_t vec_u8 VEC_TYPE;
typedef int8_t vec_i8 VEC_TYPE;
typedef uint32_t vec_u32 VEC_TYPE;
typedef int32_t vec_i32 VEC_TYPE;
typedef uint64_t vec_u64 VEC_TYPE;
typedef int64_t vec_i64 VEC_TYPE;
typedef float vec_f32 VEC_TYPE;
typedef double vec_f64 VEC_TYPE;

/* A vector for moving memory, whatever its lanes mean. */
typedef vec_u64 vec;
typedef uint64_t vec_unaligned __attribute__((vector_size(VEC_BYTES), aligned(1), may_alias));

VEC_INLINE vec vec_load(const void *p)
{
	return *(const vec_unaligned *)p;
}

VEC_INLINE void vec_store(void *p, vec v)
{
	*(vec_unaligned *)p = v;
}

/* mask has all bits of a lane set or clear. */
VEC_INLINE vec vec_select(vec mask, vec yes, vec no)
{
	return (mask & yes) | (~mask & no);
}

#if VEC_BYTES == 64

/* The first `bytes` of a vector, followed by zeros; touches no memory beyond them. */
VEC_INLINE vec vec_load_part(const void *p, size_t bytes)
{
	return (vec)_mm512_maskz_loadu_epi8((UINT64_C(1) << bytes) - 1, p);
}

VEC_INLINE void vec_store_part(void *p, vec v, size_t bytes)
{
	_mm512_mask_storeu_epi8(p, (UINT64_C(1) << bytes) - 1, (__m512i)v);
}

#else

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "parts are assembled low byte first");

/* Fewer than 8 bytes as one number, from overlapping loads, since a copy through memory would stall
 * until its small stores are done. */
VEC_INLINE uint64_t vec_load_few(const unsigned char *p, size_t bytes)
{
	if (bytes >= 4) {
		uint32_t head, tail;
		memcpy(&head, p, 4);
		memcpy(&tail, p + bytes - 4, 4);
		return head | (uint64_t)tail << 8 * (bytes - 4);
	}
	if (bytes >= 2) {
		uint16_t head, tail;
		memcpy(&head, p, 2);
		memcpy(&tail, p + bytes - 2, 2);
		return head | (uint64_t)tail << 8 * (bytes - 2);
	}
	return bytes ? *p : 0;
}

VEC_INLINE void vec_store_few(unsigned char *p, uint64_t v, size_t bytes)
{
	if (bytes >= 4) {
		uint32_t head = (uint32_t)v, tail = (uint32_t)(v >> 8 * (bytes - 4));
		memcpy(p, &head, 4);
		memcpy(p + bytes - 4, &tail, 4);
	} else if (bytes >= 2) {
		uint16_t head = (uint16_t)v, tail = (uint16_t)(v >> 8 * (bytes - 2));
		memcpy(p, &head, 2);
		memcpy(p + bytes - 2, &tail, 2);
	} else if (bytes) {
		*p = (unsigned char)v;
	}
}

VEC_INLINE uint64_t vec_load_8(const unsigned char *p)
{
	uint64_t v;
	memcpy(&v, p, 8);
	return v;
}

VEC_INLINE void vec_load_under_16(const unsigned char *p, size_t bytes, uint64_t v[2])
{
	if (bytes >= 8) {
		v[0] = vec_load_8(p);
		v[1] = vec_load_few(p + 8, bytes - 8);
	} else {
		v[0] = vec_load_few(p, bytes);
		v[1] = 0;
	}
}

VEC_INLINE void vec_store_under_16(unsigned char *p, uint64_t low, uint64_t high, size_t bytes)
{
	if (bytes >= 8) {
		memcpy(p, &low, 8);
		vec_store_few(p + 8, high, bytes - 8);
	} else {
		vec_store_few(p, low, bytes);
	}
}

/* The first `bytes` of a vector, followed by zeros; touches no memory beyond them. */
VEC_INLINE vec vec_load_part(const void *from, size_t bytes)
{
	const unsigned char *p = from;
	uint64_t v[2];
#if VEC_BYTES == 32
	if (bytes >= 16) {
		vec_load_under_16(p + 16, bytes - 16, v);
		return (vec){vec_load_8(p), vec_load_8(p + 8), v[0], v[1]};
	}
#endif
	vec_load_under_16(p, bytes, v);
	return (vec){v[0], v[1]};
}

VEC_INLINE void vec_store_part(void *to, vec v, size_t bytes)
{
	unsigned char *p = to;
#if VEC_BYTES == 32
	if (bytes >= 16) {
		_mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128((__m256i)v));
		vec_store_under_16(p + 16, v[2], v[3], bytes - 16);
		return;
	}
#endif
	vec_store_under_16(p, v[0], v[1], bytes);
}

#endif

/* Bypasses the caches if the machine has such a store; p is aligned to the vector. */
VEC_INLINE void vec_stream(void *p, vec v)
{
#if VEC_BYTES == 64
	_mm512_stream_si512(p, (__m512i)v);
#elif VEC_BYTES == 32
	_mm256_stream_si256(p, (__m256i)v);
#elif defined(__SSE2__)
	_mm_stream_si128(p, (__m128i)v);
#else
	vec_store(p, v);
#endif
}

#endif
