// AVX-512's bf16 instructions in plain C, so that the kernels' code for them runs on processors that lack them.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

static inline float emulated_wide(uint16_t number)
{
    uint32_t bits = (uint32_t)number << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline __m512 emulated_dot(__m512 sums, __m512bh a, __m512bh b)
{
    float total[16];
    uint16_t first[32], second[32];
    memcpy(total, &sums, sizeof total);
    memcpy(first, &a, sizeof first);
    memcpy(second, &b, sizeof second);
    for (int i = 0; i < 32; i++) total[i / 2] += emulated_wide(first[i]) * emulated_wide(second[i]);
    return _mm512_loadu_ps(total);
}

static inline __m256bh emulated_narrow(__m512 numbers)
{
    uint32_t bits[16];
    uint16_t halves[16];
    __m256bh result;
    memcpy(bits, &numbers, sizeof bits);
    for (int i = 0; i < 16; i++) halves[i] = (bits[i] + 0x7fff + (bits[i] >> 16 & 1)) >> 16;
    memcpy(&result, halves, sizeof result);
    return result;
}

#define __AVX512BF16__ 1
#define _mm512_dpbf16_ps emulated_dot
#define _mm512_cvtneps_pbh emulated_narrow
