// Kernels for CPUs. For inference: attention of few queries, attention in int8, products, and what lies between.
// For training, in fp32 and bf16: dropout, the loss, and attention with dropout, of padded articles or of spans, and
// its gradients; encoders in fp32 use it without draws, too.
//
// Shapes: B articles, H heads, K queries of an article (its beams, or positions), L keys, Dh head width; N rows.
// This is plain C, whose inner loops the compiler vectorises. The slowest parts also have code for some processors:
// products for AMX, for AVX-512 with VNNI and for AVX2; attention with heads of 64, which all published BART models
// have, and of 32, for AVX-512 and AVX2. -DBART_PLAIN leaves that code out.
//
// compiling.py reads the signatures behind EXPORT. These functions return 0, or 1 if there is no memory. In their
// arguments a kind is FP32, BF16 or CODES, and strides count elements.
#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX2__) && !defined(BART_PLAIN)
#include <immintrin.h>
#ifdef __AVX512BW__
#define AVX512
#ifdef __AVX512BF16__
#define BF16_DOT
#endif
#ifdef __AVX512VNNI__
#define INT8_DOT
#ifdef __AMX_INT8__
#include <sys/syscall.h>
#include <unistd.h>
#define AMX
#endif
#endif
#elif defined(__FMA__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)  // whose processors oneDNN and MKL serve
#define AVX2
#endif
#if defined(AVX512) || defined(AVX2)
#define VECTORS
#endif
#endif
#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

typedef uint16_t bf16;

// What numbers may be. CODES are rows of int8, each followed by its scale, a float.
enum { FP32, BF16, CODES };
static const int64_t SIZES[] = {4, 2, 1};
enum { LINEAR, GELU, RELU };  // activations

enum {
    LANES = 16,      // numbers that are handled at once
    BLOCK = 256,     // outputs of a row that are finished at once
    SEARCHED = 64,   // scores that are searched one by one if one of them is among the best so far
    QUERIES = 16,    // queries for which a head's keys and values are read once
    AT_ONCE = 6,     // of them, those whose contexts are summed in registers together
    WIDTH = 64,      // head width of the code for AVX-512
    NARROW = 32,     // that of small models, for which attention of few queries has such code, too
    CACHE_LINE = 64, // bytes
    AHEAD = 4096,    // bytes: keys are fetched into the cache this far ahead, beyond the page where hardware stops
    SMALL = 32000,   // numbers below which one thread is about as fast as two
#ifdef AVX512
    VECTOR = 16,     // numbers in a register
    SIDE = 4,        // keys, or registers of a value, that AT_ONCE queries are multiplied by in registers
#else
    VECTOR = 8,
    SIDE = 2,
#endif
#ifdef AVX2
    TILE_ROWS = 5,   // rows that are multiplied by a panel at once; GCC keeps the sums of 6 in memory
    GREATEST = 64,   // code of a weight in multiply(): pairs of products are added in 16 bits, and 2 * 255 * 64 < 2^15
#else
#ifdef AMX
    TILE_ROWS = 32,
#else
    TILE_ROWS = 8,
#endif
    GREATEST = 127,
#endif
    QUERY_ROWS = TILE_ROWS < 16 ? TILE_ROWS : 16,  // queries whose attention in int8 is computed together
    PANEL = 2 * VECTOR,       // columns of a product, or outputs, whose weights lie together
    KEYS_AT_ONCE = 64,        // keys whose weights are coded at once, a multiple of PANEL
    QUERIES_AT_ONCE = 48,     // queries whose attention with dropout is computed together
    ROWS_AT_ONCE = 1 << 19,   // bytes of rows that are multiplied by all panels before the next rows
};
typedef float vector __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));
typedef uint32_t bits __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));

// What kernels.py asks: whether the code for AVX-512 is in use, and constants.
EXPORT const int is_avx512 = VECTOR == 16, panel_outputs = PANEL, greatest_code = GREATEST;

INLINE int64_t round_up(int64_t number, int64_t multiple) { return (number + multiple - 1) / multiple * multiple; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Memory that begins with a cache line, or NULL.
static void *allocate(int64_t bytes) { return aligned_alloc(CACHE_LINE, round_up(bytes + 1, CACHE_LINE)); }

INLINE float widen(bf16 number)
{
    union { uint32_t bits; float value; } wide = {(uint32_t)number << 16};
    return wide.value;
}

INLINE bf16 narrow(float number)  // to the nearest; of two that are equally near, to the even one
{
    union { float value; uint32_t bits; } wide = {number};
    uint32_t rounded = (wide.bits + 0x7fff + (wide.bits >> 16 & 1)) >> 16;
    return number == number ? rounded : 0x7fc0;  // a carry must not turn NaN into a number
}

INLINE void load(float *to, const void *from, int kind, int64_t offset, int64_t count)
{
    if (kind == CODES)
        for (int64_t i = 0; i < count; i++) to[i] = ((const int8_t *)from)[offset + i];
    else if (kind == BF16)
        for (int64_t i = 0; i < count; i++) to[i] = widen(((const bf16 *)from)[offset + i]);
    else
        memcpy(to, (const float *)from + offset, count * sizeof *to);
}

INLINE void store(void *to, int kind, int64_t offset, const float *from, int64_t count)
{
    if (kind == BF16)
#pragma omp simd  // else GCC unrolls short loops before it could make vectors of them
        for (int64_t i = 0; i < count; i++) ((bf16 *)to)[offset + i] = narrow(from[i]);
    else
        memcpy((float *)to + offset, from, count * sizeof *from);
}

// Numbers as floats: where they are, or else in scratch.
INLINE const float *floats(const void *numbers, int kind, int64_t offset, int64_t count, float *scratch)
{
    if (kind == FP32) return (const float *)numbers + offset;
    load(scratch, numbers, BF16, offset, count);
    return scratch;
}

// To the nearest integer; 0 for NaN, whose conversion C leaves undefined.
INLINE int32_t nearest(float x) { return x == x ? (int32_t)rintf(x) : 0; }

// e^x for x <= 0, to 2e-7 of it; 0 below -88; NaN for NaN. With n ln 2 subtracted, |x| <= 0.35, and a Taylor series
// suffices.
INLINE float exponential(float x)
{
    const float smallest = -127 * 0.69314718f, magic = 3 << 22;  // adding magic rounds, and puts n into the lowest bits
    x = x < smallest ? smallest : x;
    union { float value; uint32_t bits; } rounded = {x * 1.44269504f + magic}, power;
    float n = rounded.value - magic;
    x = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts; n times the first one is exact
    float series = 1 + x * (1 + x * (1 / 2.f + x * (1 / 6.f + x * (1 / 24.f + x * (1 / 120.f + x * (1 / 720.f))))));
    power.bits = (rounded.bits + 127) << 23;
    return series * power.value;
}

// x times the normal distribution's share below x, with erfc(z) = 1 / (1 + a1 z + ... + a6 z^6)^16 to 3e-7 for
// z = |x| / sqrt(2) (Abramowitz & Stegun 7.1.28).
INLINE float gelu(float x)
{
    float z = 0.70710678f * fabsf(x);
    z = z > 1e8f ? 1e8f : z;  // infinity by infinity would be NaN
    float series = 0.0092705272f + z * (0.0001520143f + z * (0.0002765672f + z * 0.0000430638f));
    series = 1 + z * (0.0705230784f + z * (0.0422820123f + z * series));
    float power = series * series;
    power *= power;
    power *= power;
    return (x > 0 ? x : 0) - 0.70710678f * z / (power * power);
}

// ---------------------------------------------------------------------------------------------------- attention

// work(n, ...) for the lesser of n and AT_ONCE as a constant, so that sums stay in registers.
#define SOME(n, work, ...) \
    switch (n) { \
    case 1: work(1, __VA_ARGS__); break; \
    case 2: work(2, __VA_ARGS__); break; \
    case 3: work(3, __VA_ARGS__); break; \
    case 4: work(4, __VA_ARGS__); break; \
    case 5: work(5, __VA_ARGS__); break; \
    default: work(AT_ONCE, __VA_ARGS__); \
    }

// The keys and values of one head that any query may read.
struct head {
    const void *keys, *values;
    int kind;
    const int64_t *offsets;  // where the keys begin, and the values
    int64_t count, width;    // how many they are, a multiple of LANES, and the numbers in each
};

// Lists the columns that any query of an article may read: where their keys begin, and their mask. The list is filled
// up to whole LANES with hidden copies of the last column. Returns its length.
static int64_t list_visible(const void *mask, int mask_kind, int64_t mask_from, int64_t mask_row, int64_t rows,
                            int64_t length, int64_t key_row, int64_t *offsets, float *additive, int64_t room)
{
    int64_t count = 0;
    for (int64_t row = 0; row < rows; row++) {
        float *to = additive + row * room;
        if (mask == NULL) memset(to, 0, length * sizeof *to);
        else load(to, mask, mask_kind, mask_from + row * mask_row, length);
    }
    for (int64_t l = 0; l < length; l++) {
        int seen = 0;
        for (int64_t row = 0; row < rows; row++) seen |= additive[row * room + l] != -INFINITY;
        if (!seen) continue;
        for (int64_t row = 0; row < rows; row++) additive[row * room + count] = additive[row * room + l];
        offsets[count++] = l * key_row;
    }
    int64_t padded = round_up(count, LANES);
    for (int64_t j = count; j < padded; j++) {
        offsets[j] = offsets[count - 1];
        for (int64_t row = 0; row < rows; row++) additive[row * room + j] = -INFINITY;
    }
    return padded;
}

// scores -> e^(scale * score + mask - the greatest of these); returns their sum.
static float exponentials(float *scores, const float *mask, float scale, int64_t count)
{
    float top = -INFINITY, sum = 0;
#pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < count; j++) {
        scores[j] = scores[j] * scale + mask[j];
        top = scores[j] > top ? scores[j] : top;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < count; j++) {
        scores[j] = exponential(scores[j] - top);
        sum += scores[j];
    }
    return sum;
}

// Each lane has a sum of its own, so that the compiler may add them at once.
INLINE float dot(const float *a, const float *b, int64_t width)
{
    float lanes[LANES] = {0};
    int64_t d = 0;
    for (; d + LANES <= width; d += LANES)
        for (int i = 0; i < LANES; i++) lanes[i] += a[d + i] * b[d + i];
    for (; d < width; d++) lanes[d % LANES] += a[d] * b[d];
    for (int i = 0; i < 8; i++) lanes[i] += lanes[i + 8];
    for (int i = 0; i < 4; i++) lanes[i] += lanes[i + 4];
    return lanes[0] + lanes[2] + (lanes[1] + lanes[3]);
}

// scores[k][j] = query[k] . key j, apart from the scale of CODES
INLINE void score(struct head head, const float *query, int64_t queries, float *scores)
{
    float key[head.width];
    for (int64_t j = 0; j < head.count; j++) {
        load(key, head.keys, head.kind, head.offsets[j], head.width);
        for (int64_t k = 0; k < queries; k++) scores[k * head.count + j] = dot(query + k * head.width, key, head.width);
    }
}

// context[k] = sum over j of weights[k][j] * value j, apart from the scale of CODES
INLINE void weigh(struct head head, const float *weights, int64_t queries, float *context)
{
    float value[4][head.width];
    memset(context, 0, queries * head.width * sizeof *context);
    for (int64_t j = 0; j < head.count; j += 4) {
        for (int i = 0; i < 4; i++) load(value[i], head.values, head.kind, head.offsets[j + i], head.width);
        for (int64_t k = 0; k < queries; k++) {
            const float *w = weights + k * head.count + j;
            float *sums = context + k * head.width;
#pragma omp simd
            for (int64_t d = 0; d < head.width; d++)
                sums[d] += w[0] * value[0][d] + w[1] * value[1][d] + w[2] * value[2][d] + w[3] * value[3][d];
        }
    }
}

// numbers[k][j] *= the scale of key or value j
static void rescale(struct head head, const int8_t *codes, float *numbers, int64_t queries)
{
    for (int64_t j = 0; j < head.count; j += LANES) {
        float scales[LANES];
        for (int i = 0; i < LANES; i++) memcpy(scales + i, codes + head.offsets[j + i] + head.width, sizeof *scales);
        for (int64_t k = 0; k < queries; k++)
            for (int i = 0; i < LANES; i += VECTOR)
                *(vector *)(numbers + k * head.count + j + i) *= *(vector *)(scales + i);
    }
}

#ifdef AVX512
// Each quarter of the result holds, for each of four registers, the sum of that quarter's four numbers.
INLINE __m512 sum_quarters(const __m512 *sum)
{
    __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(sum[0], sum[1]), _mm512_unpackhi_ps(sum[0], sum[1]));
    __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(sum[2], sum[3]), _mm512_unpackhi_ps(sum[2], sum[3]));
    __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)), _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
}

// The sum of each of SIDE registers, one behind the other.
INLINE void store_sums(float *to, const vector *sums)
{
    __m512 quarters = sum_quarters((__m512[]){(__m512)sums[0], (__m512)sums[1], (__m512)sums[2], (__m512)sums[3]});
    __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps(quarters, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
}

INLINE vector load_vector(const void *numbers, int kind, int64_t offset)
{
    const void *from = (const char *)numbers + offset * SIZES[kind];
    if (kind == FP32) return *(const vector *)from;
    if (kind == CODES) return (vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from)));
    return (vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from)), 16);
}
#elif defined(AVX2)
INLINE void store_sums(float *to, const vector *sums)
{
    __m256 pairs = _mm256_hadd_ps((__m256)sums[0], (__m256)sums[1]);
    __m128 fours = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
    _mm_storel_pi((__m64 *)to, _mm_hadd_ps(fours, fours));
}

INLINE vector load_vector(const void *numbers, int kind, int64_t offset)
{
    const void *from = (const char *)numbers + offset * SIZES[kind];
    if (kind == FP32) return *(const vector *)from;
    if (kind == CODES) return (vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from)));
    return (vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(from)), 16);
}
#endif

#ifdef VECTORS
// As score(), for so many queries; it also fetches the values into the cache.
INLINE void score_some(int queries, struct head head, const float *query, float *scores)
{
    const int64_t size = SIZES[head.kind];
    for (int64_t j = 0; j < head.count; j += SIDE) {
        vector sums[AT_ONCE][SIDE] = {{{0}}};
#pragma GCC unroll 8
        for (int64_t d = 0; d < head.width; d += VECTOR) {
            vector key[SIDE];
            for (int i = 0; i < SIDE; i++) {
                int64_t offset = head.offsets[j + i] + d;
                key[i] = load_vector(head.keys, head.kind, offset);
                if (d * size % CACHE_LINE == 0) {
                    _mm_prefetch((const char *)head.keys + offset * size + AHEAD, _MM_HINT_T0);
                    _mm_prefetch((const char *)head.values + offset * size, _MM_HINT_T1);
                }
            }
            for (int k = 0; k < queries; k++) {
                vector numbers = *(const vector *)(query + k * head.width + d);
                for (int i = 0; i < SIDE; i++) sums[k][i] += key[i] * numbers;
            }
        }
        for (int k = 0; k < queries; k++) store_sums(scores + k * head.count + j, sums[k]);
    }
}

// As weigh(), for so many queries; SIDE registers of each value at a time, or all.
INLINE void weigh_some(int queries, struct head head, const float *weights, float *context)
{
    const int64_t parts = least(SIDE, head.width / VECTOR);
    for (int64_t d = 0; d < head.width; d += parts * VECTOR) {
        vector sums[AT_ONCE][SIDE] = {{{0}}};
        for (int64_t j = 0; j < head.count; j++) {
            vector value[SIDE];
            for (int i = 0; i < parts; i++)
                value[i] = load_vector(head.values, head.kind, head.offsets[j] + d + i * VECTOR);
            for (int k = 0; k < queries; k++)
                for (int i = 0; i < parts; i++) sums[k][i] += value[i] * weights[k * head.count + j];
        }
        for (int k = 0; k < queries; k++)
            for (int i = 0; i < parts; i++) *(vector *)(context + k * head.width + d + i * VECTOR) = sums[k][i];
    }
}

INLINE void score_of_kind(int kind, struct head head, const float *query, int64_t queries, float *scores)
{
    head.kind = kind;
    for (int64_t k = 0; k < queries; k += AT_ONCE)
        SOME(queries - k, score_some, head, query + k * head.width, scores + k * head.count);
}

INLINE void weigh_of_kind(int kind, struct head head, const float *weights, int64_t queries, float *context)
{
    head.kind = kind;
    for (int64_t k = 0; k < queries; k += AT_ONCE)
        SOME(queries - k, weigh_some, head, weights + k * head.count, context + k * head.width);
}
#endif

#ifdef BF16_DOT
// Scores of 4 or 8 queries. A register holds 8 numbers of each of 4 queries, and another these 8 numbers of a key four
// times. So a sum of their products holds, for each query, 4 parts of its score.
INLINE void score_fours(int fours, struct head head, const __m512i query[][WIDTH / 8], float *scores)
{
    for (int64_t j = 0; j < head.count; j += 4) {
        __m512 sums[2][4];
        for (int four = 0; four < fours; four++)
            for (int i = 0; i < 4; i++) sums[four][i] = _mm512_setzero_ps();
        for (int i = 0; i < 4; i++)
            for (int part = 0; part < WIDTH / 8; part++) {
                const __m128i *numbers = (const __m128i *)((const bf16 *)head.keys + head.offsets[j + i] + 8 * part);
                __m512bh repeated = (__m512bh)_mm512_broadcast_i32x4(_mm_loadu_si128(numbers));
                for (int four = 0; four < fours; four++)
                    sums[four][i] = _mm512_dpbf16_ps(sums[four][i], repeated, (__m512bh)query[four][part]);
            }
        for (int four = 0; four < fours; four++) {
            __m512 total = sum_quarters(sums[four]);
            float *to = scores + 4 * four * head.count + j;
            _mm_storeu_ps(to, _mm512_extractf32x4_ps(total, 0));
            _mm_storeu_ps(to + head.count, _mm512_extractf32x4_ps(total, 1));
            _mm_storeu_ps(to + 2 * head.count, _mm512_extractf32x4_ps(total, 2));
            _mm_storeu_ps(to + 3 * head.count, _mm512_extractf32x4_ps(total, 3));
        }
    }
}

static void score_bf16(struct head head, const float *query, int64_t queries, float *scores)
{
    bf16 narrowed[QUERIES][WIDTH] = {{0}};
    __m512i numbers[QUERIES / 4][WIDTH / 8];
    store(narrowed, BF16, 0, query, queries * WIDTH);
    for (int64_t k = 0; k < round_up(queries, 4); k++)
        for (int part = 0; part < WIDTH / 8; part++)
            memcpy((bf16 *)&numbers[k / 4][part] + k % 4 * 8, &narrowed[k][8 * part], 8 * sizeof(bf16));
    for (int64_t k = 0; k < queries; k += 8) {
        if (queries - k > 4) score_fours(2, head, numbers + k / 4, scores + k * head.count);
        else score_fours(1, head, numbers + k / 4, scores + k * head.count);
    }
}

// As weigh(), for so many queries; weights are bf16, and taken two columns at a time.
INLINE void weigh_some_bf16(int queries, struct head head, const bf16 *weights, float *context)
{
    const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const bf16 *values = head.values;
    __m512 sums[AT_ONCE][4];
    for (int k = 0; k < queries; k++)
        for (int i = 0; i < 4; i++) sums[k][i] = _mm512_setzero_ps();
    for (int64_t j = 0; j < head.count; j += 2) {
        __m512i pairs[4];
        for (int half = 0; half < 2; half++) {
            __m512i first = _mm512_loadu_si512(values + head.offsets[j] + 32 * half);
            __m512i second = _mm512_loadu_si512(values + head.offsets[j + 1] + 32 * half);
            pairs[2 * half] = _mm512_unpacklo_epi16(first, second);
            pairs[2 * half + 1] = _mm512_unpackhi_epi16(first, second);
        }
        for (int k = 0; k < queries; k++) {
            __m512i weight = _mm512_set1_epi32(*(const int32_t *)(weights + k * head.count + j));
            for (int i = 0; i < 4; i++)
                sums[k][i] = _mm512_dpbf16_ps(sums[k][i], (__m512bh)pairs[i], (__m512bh)weight);
        }
    }
    for (int k = 0; k < queries; k++)
        for (int half = 0; half < 2; half++) {  // unpacking has put every other four dimensions into one register
            __m512 low = sums[k][2 * half], high = sums[k][2 * half + 1];
            _mm512_storeu_ps(context + k * WIDTH + 32 * half, _mm512_permutex2var_ps(low, first, high));
            _mm512_storeu_ps(context + k * WIDTH + 32 * half + 16, _mm512_permutex2var_ps(low, last, high));
        }
}

static void weigh_bf16(struct head head, float *weights, int64_t queries, float *context)
{
    bf16 *narrowed = (bf16 *)weights;  // in place: each number is read before its memory is overwritten
    for (int64_t i = 0; i < queries * head.count; i += LANES)
        _mm256_storeu_si256((__m256i *)(narrowed + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(weights + i)));
    for (int64_t k = 0; k < queries; k += AT_ONCE)
        SOME(queries - k, weigh_some_bf16, head, narrowed + k * head.count, context + k * WIDTH);
}
#endif

// As score() and weigh(), for a width that is a constant, which makes shorter loops.
INLINE void score_of_width(int64_t width, struct head head, const float *query, int64_t queries, float *scores)
{
    head.width = width;
#ifdef BF16_DOT
    if (width == WIDTH && head.kind == BF16) return score_bf16(head, query, queries, scores);
#endif
#ifdef VECTORS
    if (head.kind == FP32) score_of_kind(FP32, head, query, queries, scores);
    else if (head.kind == BF16) score_of_kind(BF16, head, query, queries, scores);
    else score_of_kind(CODES, head, query, queries, scores);
#else
    score(head, query, queries, scores);
#endif
}

INLINE void weigh_of_width(int64_t width, struct head head, float *weights, int64_t queries, float *context)
{
    head.width = width;
#ifdef BF16_DOT
    if (width == WIDTH && head.kind == BF16) return weigh_bf16(head, weights, queries, context);
#endif
#ifdef VECTORS
    if (head.kind == FP32) weigh_of_kind(FP32, head, weights, queries, context);
    else if (head.kind == BF16) weigh_of_kind(BF16, head, weights, queries, context);
    else weigh_of_kind(CODES, head, weights, queries, context);
#else
    weigh(head, weights, queries, context);
#endif
}

static void score_head(struct head head, const float *query, int64_t queries, float *scores)
{
    if (head.width == WIDTH) score_of_width(WIDTH, head, query, queries, scores);
    else if (head.width == NARROW) score_of_width(NARROW, head, query, queries, scores);
    else score(head, query, queries, scores);
    if (head.kind == CODES) rescale(head, head.keys, scores, queries);
}

// Overwrites the weights.
static void weigh_head(struct head head, float *weights, int64_t queries, float *context)
{
    if (head.kind == CODES) rescale(head, head.values, weights, queries);
    if (head.width == WIDTH) weigh_of_width(WIDTH, head, weights, queries, context);
    else if (head.width == NARROW) weigh_of_width(NARROW, head, weights, queries, context);
    else weigh(head, weights, queries, context);
}

// context (B, K, H * Dh) = softmax(query keys^T / sqrt(Dh) + mask) values. The mask is NULL if all may be read, and has
// one row for all queries if mask_rows is 1. A query that may read nothing gets NaN.
EXPORT int attend(const void *query, int query_kind, int64_t query_article, int64_t query_head, int64_t query_row,
                  const void *keys, const void *values, int kind, int64_t key_article, int64_t key_head,
                  int64_t key_row, const void *mask, int mask_kind, int64_t mask_article, int64_t mask_row,
                  int64_t mask_rows, void *context, int64_t articles, int64_t heads, int64_t queries, int64_t length,
                  int64_t width, int threads)
{
    int64_t room = round_up(length, LANES), group = least(queries, QUERIES), groups = (queries + QUERIES - 1) / QUERIES;
    int64_t scores_size = round_up(group, 4) * room;  // of each thread, besides the group's queries and contexts
    int64_t thread_size = round_up(scores_size + 2 * group * width, CACHE_LINE / sizeof(float));
    if (articles * heads * queries * length * width < 4 * SMALL) threads = 1;
    float *memory = allocate((threads * thread_size + articles * mask_rows * room) * sizeof(float)
                             + articles * (room + 1) * sizeof(int64_t));
    if (memory == NULL) return 1;
    int64_t *offsets = (int64_t *)(memory + threads * thread_size), *counts = offsets + articles * room;
    float *additive = (float *)(counts + articles);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for
        for (int64_t b = 0; b < articles; b++)
            counts[b] = list_visible(mask, mask_kind, b * mask_article, mask_row, mask_rows, length, key_row,
                                     offsets + b * room, additive + b * mask_rows * room, room);
        float *scores = memory + omp_get_thread_num() * thread_size;
        float *rows = scores + scores_size, *sums = rows + group * width, divisors[QUERIES];
#pragma omp for schedule(dynamic) nowait
        for (int64_t item = 0; item < articles * heads * groups; item++) {
            int64_t b = item / groups / heads, h = item / groups % heads, k0 = item % groups * group;
            int64_t here = least(queries - k0, group), from = b * query_article + h * query_head + k0 * query_row;
            int64_t skipped = (b * key_article + h * key_head) * SIZES[kind];
            struct head head = {(const char *)keys + skipped, (const char *)values + skipped, kind,
                                offsets + b * room, counts[b], width};
            for (int64_t k = 0; k < here; k++)
                load(rows + k * width, query, query_kind, from + k * query_row, width);
            score_head(head, rows, here, scores);
            for (int64_t k = 0; k < here; k++) {
                const float *mask_of_row = additive + (b * mask_rows + (mask_rows == 1 ? 0 : k0 + k)) * room;
                divisors[k] = exponentials(scores + k * head.count, mask_of_row, 1 / sqrtf(width), head.count);
            }
            weigh_head(head, scores, here, sums);
            for (int64_t k = 0; k < here; k++) {
                for (int64_t d = 0; d < width; d++) sums[k * width + d] /= divisors[k];
                store(context, query_kind, ((b * queries + k0 + k) * heads + h) * width, sums + k * width, width);
            }
        }
    }
    free(memory);
    return 0;
}

// ---------------------------------------------------------------------------- attention with dropout, for training

// What products are made of: a number in fp32, or in bf16 two over which sums run, the first one in the lower bits. All
// that is said of a product's depth and strides counts words.
typedef union { float number; uint32_t pair; } word;

INLINE word pair_of(float first, float second)
{
    return (word){.pair = narrow(first) | (uint32_t)narrow(second) << 16};
}

// sum + the products of two vectors, or of words of bf16, whose products are added up in fp32.
INLINE vector add_product(int kind, vector sum, vector words, word a)
{
    if (kind == FP32) return sum + words * a.number;
#ifdef BF16_DOT
    return (vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)words, (__m512bh)_mm512_set1_epi32(a.pair));
#else
    sum += (vector)((bits)words << 16) * widen(a.pair);
    return sum + (vector)((bits)words & 0xffff0000) * widen(a.pair >> 16);
#endif
}

// c[r][i] = (adds ? c[r][i] : 0) + sum over k of a[r * row + k * column] * b[k][i], for the PANEL columns i of panel b.
INLINE void multiply_tile(int rows, int kind, const word *a, int64_t row, int64_t column, const word *b, int64_t depth,
                          float *c, int64_t c_row, int adds)
{
    vector sums[AT_ONCE][2];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 2; i++) sums[r][i] = adds ? *(const vector *)(c + r * c_row + i * VECTOR) : (vector){0};
    for (int64_t k = 0; k < depth; k++) {
        vector first = *(const vector *)(b + k * PANEL), last = *(const vector *)(b + k * PANEL + VECTOR);
#if defined(__AVX2__) && !defined(BART_PLAIN)
        __asm__("" : "+v"(first), "+v"(last));  // else GCC reads them again for each row, and reading sets the speed
#endif
        for (int r = 0; r < rows; r++) {
            sums[r][0] = add_product(kind, sums[r][0], first, a[r * row + k * column]);
            sums[r][1] = add_product(kind, sums[r][1], last, a[r * row + k * column]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 2; i++) *(vector *)(c + r * c_row + i * VECTOR) = sums[r][i];
}

// c = (adds ? c : 0) + a b: a has so many rows, b so many columns, a multiple of PANEL, in panels.
static void multiply_panels(int kind, const word *a, int64_t row, int64_t column, int64_t rows, const word *b,
                            int64_t depth, int64_t columns, float *c, int64_t c_row, int adds)
{
#define MULTIPLY(kind) \
    SOME(rows - r, multiply_tile, kind, a + r * row, row, column, b + panel * depth, depth, c + r * c_row + panel, \
         c_row, adds)
    for (int64_t panel = 0; panel < columns; panel += PANEL)
        for (int64_t r = 0; r < rows; r += AT_ONCE)
            if (kind == BF16) MULTIPLY(BF16)
            else MULTIPLY(FP32)
}

// Rows (count, width) of numbers as panels of PANEL columns, filled up with 0. In bf16 words pair numbers of two rows.
static void pack_panels(int kind, const word *from, int64_t row, int64_t count, int64_t width, word *to)
{
    const bf16 *halves = (const bf16 *)from;
    for (int64_t panel = 0; panel < width; panel += PANEL) {
        int64_t columns = least(PANEL, width - panel);
        for (int64_t k = 0; k < count; k += kind == BF16 ? 2 : 1, to += PANEL) {
            const bf16 *first = halves + 2 * k * row + panel, *second = first + 2 * row;
            if (kind == FP32) memcpy(to, from + k * row + panel, columns * sizeof *to);
            else
                for (int64_t i = 0; i < columns; i++)
                    to[i].pair = first[i] | (k + 1 < count ? (uint32_t)second[i] << 16 : 0);
            memset(to + columns, 0, (PANEL - columns) * sizeof *to);
        }
    }
}

// Rows i and i + half, for all i without that bit, exchange their blocks of half numbers (Eklundh, 1972).
INLINE void exchange(vector *rows, int half)
{
    bits low, high;
    for (int j = 0; j < VECTOR; j++) low[j] = j & half ? VECTOR + j - half : j, high[j] = low[j] + half;
#pragma GCC unroll 16
    for (int i = 0; i < VECTOR; i++)
        if (!(i & half)) {
            vector first = rows[i], second = rows[i + half];
            rows[i] = __builtin_shuffle(first, second, low), rows[i + half] = __builtin_shuffle(first, second, high);
        }
}

// Packs the transpose of rows (count, width) into the same panels; words stay whole.
static void pack_transposed(const word *from, int64_t row, int64_t count, int64_t width, word *to)
{
    for (int64_t i = 0; i < round_up(count, PANEL); i += VECTOR)
        for (int64_t k = 0; k < width; k += VECTOR) {
            int64_t height = least(count - i, VECTOR), here = least(width - k, VECTOR);
            vector rows[VECTOR] = {{0}};
            for (int64_t r = 0; r < height; r++)
                if (here == VECTOR) rows[r] = *(const vector *)(from + (i + r) * row + k);
                else memcpy(rows + r, from + (i + r) * row + k, here * sizeof *from);
            if (VECTOR > 8) exchange(rows, 8);
            exchange(rows, 4), exchange(rows, 2), exchange(rows, 1);
            for (int64_t c = 0; c < here; c++)
                *(vector *)(to + (i / PANEL * width + k + c) * PANEL + i % PANEL) = rows[c];
        }
}

// A number that tells the draws of a row from those of others (Steele et al., 2014, figure 16: SplitMix64).
INLINE uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

// 32 random bits, a function of the column and of the row's number.
INLINE uint32_t draw(uint32_t column, uint64_t row)
{
    uint32_t x = (column ^ (uint32_t)row) * 0x9e3779b1u;
    x = (x ^ x >> 15) + (uint32_t)(row >> 32);
    x *= 0x85ebca77u;
    x = (x ^ x >> 13) * 0xc2b2ae3du;
    return x ^ x >> 16;
}

// What all functions below are given. Strides count words, but for the mask's; keys and values have the same. Articles
// have as many queries and keys as `queries` and `length` say. With starts, these are the most, article b has the rows
// query_starts[b] to query_starts[b + 1] of those of all articles, likewise its keys, and article strides mean nothing.
// The mask is NULL if all may be read, and has one row for all queries if mask_row is 0; a query that may read nothing
// reads all.
struct attention {
    const word *query, *keys, *values;
    int kind;
    const float *mask;
    const int32_t *query_starts, *key_starts;
    int64_t query_article, query_head, query_row, key_article, key_head, key_row, mask_article, mask_row;
    int64_t heads, queries, length, width;
    int is_causal;
    uint64_t seed;
    uint32_t dropped;  // of 2^32 draws
    float scale;       // of what is kept
};

// The words of so many numbers.
INLINE int64_t words(const struct attention *all, int64_t count) { return all->kind == BF16 ? (count + 1) / 2 : count; }

// The queries of a head, and its keys and values.
struct part {
    const word *query, *keys, *values;
    int64_t queries, length, first_query, first_key;  // the first ones' numbers, of those of all articles
};

INLINE struct part part_of(const struct attention *all, int64_t b, int64_t h)
{
    const int32_t *q = all->query_starts, *k = all->key_starts;
    int64_t query = h * all->query_head, key = h * all->key_head;
    if (q == NULL) {
        query += b * all->query_article, key += b * all->key_article;
        return (struct part){all->query + query, all->keys + key, all->values + key,
                             all->queries, all->length, b * all->queries, b * all->length};
    }
    query += q[b] * all->query_row, key += k[b] * all->key_row;
    return (struct part){all->query + query, all->keys + key, all->values + key,
                         q[b + 1] - q[b], k[b + 1] - k[b], q[b], k[b]};
}

// scores -> e^(score - the greatest), 0 behind the length; returns their sum.
static float weights_of(const struct attention *all, float *scores, float *additive, int64_t article, int64_t query,
                        int64_t length)
{
    int64_t room = round_up(length, PANEL);
    if (all->is_causal)
        for (int64_t j = 0; j < length; j++) additive[j] = j <= query ? 0 : -INFINITY;
    else if (all->mask == NULL) memset(additive, 0, length * sizeof *additive);
    else {
        const float *mask = all->mask + article * all->mask_article + query * all->mask_row;
        // With fmaxf(), or without the pointer, GCC does not vectorise this.
        for (int64_t j = 0; j < length; j++) additive[j] = mask[j] > -FLT_MAX / 2 ? mask[j] : -FLT_MAX / 2;
    }
    for (int64_t j = length; j < room; j++) additive[j] = -INFINITY;
    return exponentials(scores, additive, 1 / sqrtf(all->width), room);
}

INLINE uint64_t seed_of(const struct attention *all, int64_t item, int64_t query)
{
    return mixed(all->seed + item * all->queries + query);
}

// In bf16, turns rows (count, room) of floats in place into words that pair the numbers of two rows, and leaves each
// second row unused. In fp32 it does nothing.
static void pair_up(int kind, float *floats, int64_t count, int64_t room)
{
    if (kind == FP32) return;
    for (int64_t k = 0; k < count; k += 2) {
        float *first = floats + k * room, *second = first + room;
        if (k + 1 == count) memset(second, 0, room * sizeof *second);
        for (int64_t j = 0; j < room; j++) first[j] = pair_of(first[j], second[j]).number;
    }
}

// context (rows of queries, H, Dh) = dropout(softmax(query keys^T / sqrt(Dh) + mask)) values
static void attend_head(const struct attention *all, int64_t item, void *context, float *memory)
{
    int64_t b = item / all->heads, h = item % all->heads, width = all->width, depth = words(all, width);
    struct part part = part_of(all, b, h);
    int64_t length = part.length, room = round_up(length, PANEL), columns = round_up(width, PANEL);
    uint32_t dropped = all->dropped;  // GCC vectorises the draws only with a local copy and with an `int j`
    word *keys = (word *)memory, *values = keys + depth * room, *narrowed = values + words(all, length) * columns;
    float *scores = (float *)(narrowed + QUERIES_AT_ONCE * words(all, room)), *sums = scores + QUERIES_AT_ONCE * room;
    float *additive = sums + QUERIES_AT_ONCE * columns;
    pack_transposed(part.keys, all->key_row, length, depth, keys);
    pack_panels(all->kind, part.values, all->key_row, length, width, values);
    for (int64_t q = 0; q < part.queries; q += QUERIES_AT_ONCE) {
        int64_t here = least(part.queries - q, QUERIES_AT_ONCE), to = (part.first_query + q) * all->heads + h;
        float factors[QUERIES_AT_ONCE];
        multiply_panels(all->kind, part.query + q * all->query_row, all->query_row, 1, here, keys, depth, room, scores,
                        room, 0);
        for (int64_t k = 0; k < here; k++) {
            float *row = scores + k * room;
            factors[k] = all->scale / weights_of(all, row, additive, b, q + k, length);
            uint64_t seed = seed_of(all, item, q + k);
            if (dropped)
#pragma omp simd
                for (int j = 0; j < room; j++) row[j] = draw(j, seed) >= dropped ? row[j] : 0;
            if (all->kind == BF16) store(narrowed, BF16, k * room, row, room);
        }
        multiply_panels(all->kind, all->kind == BF16 ? narrowed : (word *)scores, words(all, room), 1, here, values,
                        words(all, length), columns, sums, columns, 0);
        for (int64_t k = 0; k < here; k++) {
            float *row = sums + k * columns;
            for (int64_t d = 0; d < width; d++) row[d] *= factors[k];
            store(context, all->kind, (to + k * all->heads) * width, row, width);
        }
    }
}

// The gradients of query, keys and values, as (their rows, H, Dh), from that of the context.
static void gradients_of_head(const struct attention *all, int64_t item, const word *gradient, void *of_query,
                              void *of_keys, void *of_values, float *memory)
{
    int64_t b = item / all->heads, h = item % all->heads, width = all->width, row = all->heads * width;
    struct part part = part_of(all, b, h);
    int kind = all->kind;
    int64_t length = part.length, room = round_up(length, PANEL), columns = round_up(width, PANEL);
    uint32_t dropped = all->dropped;  // as above
    int64_t depth = words(all, width), gradient_row = words(all, row), step = kind == BF16 ? 2 * room : room;
    word *keys = (word *)memory, *values = keys + depth * room, *key_panels = values + depth * room;
    word *panels = key_panels + words(all, length) * columns, *narrowed = panels + QUERIES_AT_ONCE * columns;
    float *weights = (float *)(narrowed + QUERIES_AT_ONCE * room), *of_weights = weights + QUERIES_AT_ONCE * room;
    float *key_sums = of_weights + QUERIES_AT_ONCE * room, *value_sums = key_sums + length * columns;
    float *sums = value_sums + length * columns, *additive = sums + QUERIES_AT_ONCE * columns;
    float factor = 1 / sqrtf(width);
    pack_transposed(part.keys, all->key_row, length, depth, keys);
    pack_panels(kind, part.keys, all->key_row, length, width, key_panels);
    pack_transposed(part.values, all->key_row, length, depth, values);
    memset(key_sums, 0, 2 * length * columns * sizeof *key_sums);
    for (int64_t q = 0; q < part.queries; q += QUERIES_AT_ONCE) {
        int64_t here = least(part.queries - q, QUERIES_AT_ONCE), at = (part.first_query + q) * row + h * width;
        const word *query = part.query + q * all->query_row, *of_context = gradient + words(all, at);
        multiply_panels(kind, query, all->query_row, 1, here, keys, depth, room, weights, room, 0);
        multiply_panels(kind, of_context, gradient_row, 1, here, values, depth, room, of_weights, room, 0);
        for (int64_t k = 0; k < here; k++) {
            float *w = weights + k * room, *g = of_weights + k * room, mean = 0;
            float inverse = 1 / weights_of(all, w, additive, b, q + k, length), scale = all->scale;
            uint64_t seed = seed_of(all, item, q + k);
            if (dropped)
#pragma omp simd
                for (int j = 0; j < room; j++) additive[j] = draw(j, seed) >= dropped ? scale : 0;
            else
                for (int64_t j = 0; j < room; j++) additive[j] = scale;
#pragma omp simd reduction(+ : mean)
            for (int64_t j = 0; j < room; j++) {
                float kept = additive[j];
                w[j] *= inverse;
                g[j] *= kept;
                mean += w[j] * g[j];
                additive[j] = w[j] * kept;
            }
            for (int64_t j = 0; j < room; j++) {
                g[j] = w[j] * (g[j] - mean) * factor;
                w[j] = additive[j];
            }
            if (kind == BF16) store(narrowed, BF16, k * room, g, room);
        }
        pair_up(kind, weights, here, room);
        pair_up(kind, of_weights, here, room);
        pack_panels(kind, of_context, gradient_row, here, width, panels);
        multiply_panels(kind, (word *)weights, 1, step, length, panels, words(all, here), columns, value_sums, columns,
                        1);
        pack_panels(kind, query, all->query_row, here, width, panels);
        multiply_panels(kind, (word *)of_weights, 1, step, length, panels, words(all, here), columns, key_sums, columns,
                        1);
        multiply_panels(kind, kind == BF16 ? narrowed : (word *)of_weights, words(all, room), 1, here, key_panels,
                        words(all, length), columns, sums, columns, 0);
        for (int64_t k = 0; k < here; k++) store(of_query, kind, at + k * row, sums + k * columns, width);
    }
    for (int64_t l = 0; l < length; l++) {
        int64_t to = (part.first_key + l) * row + h * width;
        store(of_keys, kind, to, key_sums + l * columns, width);
        store(of_values, kind, to, value_sums + l * columns, width);
    }
}

// Attention with dropout, if there is no gradient, else its gradients; all but the mask are of one kind, FP32 or BF16.
// In bf16 strides and widths are even, and addresses those of words; scores are fp32, and weights and the gradients of
// scores are rounded for products. The draws are a function of the seed and of `queries`.
EXPORT int attend_dropped(const void *query, int64_t query_article, int64_t query_head, int64_t query_row,
                          const void *keys, const void *values, int kind, int64_t key_article, int64_t key_head,
                          int64_t key_row, const int32_t *query_starts, const int32_t *key_starts, const float *mask,
                          int64_t mask_article, int64_t mask_row, int is_causal, const void *gradient, void *context,
                          void *of_query, void *of_keys, void *of_values, int64_t articles, int64_t heads,
                          int64_t queries, int64_t length, int64_t width, int64_t seed, int64_t dropped, float scale,
                          int threads)
{
    int64_t in_word = kind == BF16 ? 2 : 1;
    struct attention all = {query, keys, values, kind, mask, query_starts, key_starts, query_article / in_word,
                            query_head / in_word, query_row / in_word, key_article / in_word, key_head / in_word,
                            key_row / in_word, mask_article, mask_row, heads, queries, length, width, is_causal, seed,
                            dropped, scale};
    int64_t room = round_up(length, PANEL), columns = round_up(width, PANEL);
    int64_t size = 2 * width * room + 3 * length * columns + QUERIES_AT_ONCE * (3 * room + 2 * columns) + room;
    size = round_up(size, CACHE_LINE / sizeof(float));  // of each thread
    if (articles * heads * queries * length * width < SMALL) threads = 1;
    float *memory = allocate(threads * size * sizeof *memory);
    if (memory == NULL) return 1;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t item = 0; item < articles * heads; item++) {
        float *scratch = memory + omp_get_thread_num() * size;
        if (gradient == NULL) attend_head(&all, item, context, scratch);
        else gradients_of_head(&all, item, gradient, of_query, of_keys, of_values, scratch);
    }
    free(memory);
    return 0;
}

// out = added + dropout(states); added, fp32 as out is then, may be NULL. The draws are a function of the seed.
EXPORT int drop(const void *states, int kind, const float *added, void *out, int out_kind, int64_t count, int64_t seed,
                int64_t dropped, float scale, int threads)
{
#pragma omp parallel for num_threads(threads) if (count > SMALL)
    for (int64_t from = 0; from < count; from += BLOCK) {
        int64_t here = least(count - from, BLOCK);
        float numbers[BLOCK];
        uint64_t row = mixed(seed + from / BLOCK);
        load(numbers, states, kind, from, here);
        for (int64_t i = 0; i < here; i++) numbers[i] = draw(i, row) >= (uint32_t)dropped ? numbers[i] * scale : 0;
        if (added != NULL)
            for (int64_t i = 0; i < here; i++) numbers[i] += added[from + i];
        store(out, out_kind, from, numbers, here);
    }
    return 0;
}

// --------------------------------------------------------------------------------------------------------- rows

// codes = 128 + 127 row / peak, to the nearest, with peak = max |row| + FLT_MIN; returns peak. If a number is not
// finite, neither is peak, and the codes mean nothing.
static float quantize(uint8_t *codes, const float *row, int64_t width)
{
    const uint32_t *bits = (const uint32_t *)row;
    uint32_t top = 0;
    // The bits of numbers that are not negative have the order of the numbers, and NaN is above all.
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < width; i++) {
        uint32_t size = bits[i] & 0x7fffffff;
        top = size > top ? size : top;
    }
    union { uint32_t bits; float value; } peak = {top};
    peak.value += FLT_MIN;
    float scale = peak.value > 1e-36f ? 1 / peak.value * 127 : 0;  // as torch divides; it would be infinite below
    for (int64_t i = 0; i < width; i++) codes[i] = 128 + nearest(row[i] * scale);
    return peak.value;
}

// codes (N, width) and peak (N,) = quantize(row) for each row of input.
EXPORT int quantize_rows(const void *input, int kind, uint8_t *codes, float *peak, int64_t rows, int64_t width,
                         int threads)
{
#pragma omp parallel for num_threads(threads) if (rows > 1 && rows * width >= SMALL)
    for (int64_t r = 0; r < rows; r++) {
        float scratch[width];
        peak[r] = quantize(codes + r * width, floats(input, kind, r * width, width, scratch), width);
    }
    return 0;
}

// Parts and heads of rows (B, L, parts * H * Dh) -> CODES (parts, B, H, L, Dh + 4).
EXPORT int code_heads(const void *input, int kind, int8_t *codes, int64_t articles, int64_t length, int64_t parts,
                      int64_t heads, int64_t width, int threads)
{
    int64_t vectors = parts * heads, room = width + sizeof(float);
#pragma omp parallel for collapse(2) num_threads(threads) if (articles * length * vectors * width > SMALL)
    for (int64_t b = 0; b < articles; b++)
        for (int64_t l = 0; l < length; l++)
            for (int64_t vector = 0; vector < vectors; vector++) {
                int64_t head = (vector / heads * articles + b) * heads + vector % heads;
                int8_t *to = codes + (head * length + l) * room;
                int64_t from = ((b * length + l) * vectors + vector) * width;
                float scratch[width];
                uint8_t unsigned_codes[width];
                float scale = quantize(unsigned_codes, floats(input, kind, from, width, scratch), width) / 127;
                for (int64_t d = 0; d < width; d++) to[d] = unsigned_codes[d] ^ 0x80;  // subtracts 128
                memcpy(to + width, &scale, sizeof scale);
            }
    return 0;
}

// What follows a product: out = act(bias + products * peak of the row). out, fp32 or bf16, may be products itself.
EXPORT int finish_rows(const float *products, const float *peak, const float *bias, int with_gelu, void *out,
                       int out_kind, int64_t rows, int64_t width, int threads)
{
#pragma omp parallel for num_threads(threads) if (rows > 1 && rows * width * (with_gelu ? 4 : 1) >= SMALL)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t from = 0; from < width; from += BLOCK) {
            int64_t count = least(width - from, BLOCK), offset = r * width + from;
            float block[BLOCK];
            for (int64_t i = 0; i < count; i++) block[i] = bias[from + i] + products[offset + i] * peak[r];
            if (with_gelu)
                for (int64_t i = 0; i < count; i++) block[i] = gelu(block[i]);
            store(out, out_kind, offset, block, count);
        }
    return 0;
}

// The end of a branch: out = norm(states + added), row by row.
EXPORT int add_and_norm(const float *states, const float *added, const float *gain, const float *shift, float epsilon,
                        float *out, int64_t rows, int64_t width, int threads)
{
#pragma omp parallel for num_threads(threads) if (rows * width > SMALL / 2)
    for (int64_t r = 0; r < rows; r++) {
        const float *first = states + r * width, *second = added + r * width;
        float *row = out + r * width, sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) sum += row[i] = first[i] + second[i];
        float mean = sum / width;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < width; i++) squares += (row[i] - mean) * (row[i] - mean);
        float scale = 1 / sqrtf(squares / width + epsilon);
        for (int64_t i = 0; i < width; i++) row[i] = (row[i] - mean) * scale * gain[i] + shift[i];
    }
    return 0;
}

// Rows of logits without their bias -> the cross entropy of each, and with `gradients`, in place, those by the logits,
// else whether the label is the first of the greatest. A share of each label, smoothing, is spread over all. Where the
// label is negative, losses, hits and gradients are 0.
EXPORT int cross_entropy(void *logits, int kind, const float *bias, const int64_t *labels, float smoothing,
                         int gradients, float *losses, int64_t *correct, int64_t rows, int64_t width, int threads)
{
    int64_t room = round_up(width, LANES);
    float *memory = allocate(threads * room * sizeof *memory);  // bf16 becomes fp32 there
    if (memory == NULL) return 1;
#pragma omp parallel for num_threads(threads) if (rows * width > SMALL)
    for (int64_t r = 0; r < rows; r++) {
        if (labels[r] < 0) {
            losses[r] = correct[r] = 0;
            if (gradients && kind == BF16) memset((uint16_t *)logits + r * width, 0, width * sizeof(uint16_t));
            if (gradients && kind == FP32) memset((float *)logits + r * width, 0, width * sizeof(float));
            continue;
        }
        float *row = kind == FP32 ? (float *)logits + r * width : memory + omp_get_thread_num() * room;
        float top = -INFINITY;
        double sum = 0, total = 0;
        if (kind == BF16) load(row, logits, BF16, r * width, width);
#pragma omp simd reduction(max : top)
        for (int64_t i = 0; i < width; i++) {
            row[i] += bias[i];
            top = row[i] > top ? row[i] : top;
        }
        float *wanted = row + labels[r], of_label = *wanted - top;
        int first = !gradients && *wanted == top;
        for (const float *logit = row; first && logit < wanted; logit++) first = *logit != top;
        correct[r] = first;
        for (int64_t from = 0; from < width; from += BLOCK) {
            int64_t until = least(from + BLOCK, width);
            float powers = 0, block = 0;
#pragma omp simd reduction(+ : powers, block)
            for (int64_t i = from; i < until; i++) {
                float x = row[i] - top;
                block += x;
                row[i] = exponential(x);
                powers += row[i];
            }
            sum += powers;
            total += block;
        }
        losses[r] = log(sum) - (1 - smoothing) * of_label - (smoothing > 0 ? smoothing * total / width : 0);
        if (!gradients) continue;
        float inverse = 1 / sum, spread = smoothing / width;
        for (int64_t i = 0; i < width; i++) row[i] = row[i] * inverse - spread;
        *wanted -= 1 - smoothing;
        if (kind == BF16) store(logits, BF16, r * width, row, width);
    }
    free(memory);
    return 0;
}

// -------------------------------------------------------------------------------- scores of the next ids in a search

// scores (N, V) = log softmax of each row of logits, which in fp32 may be where the scores go.
EXPORT int log_softmax(const void *logits, int kind, float *scores, int64_t rows, int64_t width, int threads)
{
#pragma omp parallel for num_threads(threads) if (rows * width > SMALL)
    for (int64_t r = 0; r < rows; r++) {
        float *row = scores + r * width, top = -INFINITY;
        double sum = 0;
        if (kind != FP32 || logits != scores) load(row, logits, kind, r * width, width);
#pragma omp simd reduction(max : top)
        for (int64_t i = 0; i < width; i++) top = row[i] > top ? row[i] : top;
        for (int64_t from = 0; from < width; from += BLOCK) {
            int64_t until = least(from + BLOCK, width);
            float powers = 0;
#pragma omp simd reduction(+ : powers)
            for (int64_t i = from; i < until; i++) powers += exponential(row[i] - top);
            sum += powers;
        }
        float logarithm = log(sum);
        for (int64_t i = 0; i < width; i++) row[i] = row[i] - top - logarithm;
    }
    return 0;
}

// Whether a sum comes before another: NaN before all numbers, and the first of equal ones.
INLINE int precedes(float a, float b) { return a > b || (a != a && b == b); }

// The greatest `count` of scores (B, K, V) + bases (B, K) of each article, in descending order; their places in K*V.
EXPORT int top_sums(const float *scores, const float *bases, float *sums, int64_t *places, int64_t articles,
                    int64_t beams, int64_t width, int64_t count, int threads)
{
#pragma omp parallel for num_threads(threads) if (articles * beams * width > SMALL)
    for (int64_t b = 0; b < articles; b++) {
        float *best = sums + b * count;
        int64_t held = 0, *at = places + b * count;
        for (int64_t k = 0; k < beams; k++) {
            const float *row = scores + (b * beams + k) * width, base = bases[b * beams + k];
            for (int64_t from = 0; from < width; from += SEARCHED) {
                int64_t until = least(from + SEARCHED, width);
                float worst = best[count - 1];
                int any = held < count;
                if (!any)
#pragma omp simd reduction(| : any)
                    for (int64_t i = from; i < until; i++) any |= !(row[i] + base <= worst);  // NaN, too
                for (int64_t i = from; any && i < until; i++) {
                    float sum = row[i] + base;
                    if (held == count && !precedes(sum, best[count - 1])) continue;
                    int64_t place = held < count ? held++ : count - 1;
                    for (; place > 0 && precedes(sum, best[place - 1]); place--) {
                        best[place] = best[place - 1];
                        at[place] = at[place - 1];
                    }
                    best[place] = sum;
                    at[place] = k * width + i;
                }
            }
        }
    }
    return 0;
}

// ----------------------------------------------------------------------------------------------------- products

#ifdef VECTORS
// Writes act(tile), `count` outputs of each row, from `to` on; rows of outputs are `outs` apart.
INLINE void store_tile(float tile[][PANEL], int64_t rows, int activation, void *out, int out_kind, int64_t to,
                       int64_t outs, int64_t count)
{
    for (int64_t r = 0; r < rows; r++) {
        if (activation == GELU)
            for (int i = 0; i < PANEL; i++) tile[r][i] = gelu(tile[r][i]);
        if (activation == RELU)
            for (int i = 0; i < PANEL; i++) tile[r][i] = tile[r][i] < 0 ? 0 : tile[r][i];
        if (count == PANEL) store(out, out_kind, to + r * outs, tile[r], PANEL);
        else store(out, out_kind, to + r * outs, tile[r], count);
    }
}

// out (N, outs) = act(bias + input weights^T) in fp32, with weights as panels.
EXPORT int multiply_fp32(const float *input, const float *weights, const float *bias, int activation, float *out,
                         int64_t rows, int64_t width, int64_t outs, int threads)
{
    enum { ROWS = 96, INPUTS = 384 };  // the weights of so many inputs stay in the first cache for all of these rows
    if (rows == 0) return 0;
    int64_t chunks = (rows + ROWS - 1) / ROWS, chunk = round_up((rows + chunks - 1) / chunks, AT_ONCE);  // of like size
#pragma omp parallel for collapse(2) num_threads(threads) if (rows * width * outs > 8 * SMALL)
    for (int64_t first = 0; first < rows; first += chunk)
        for (int64_t o = 0; o < outs; o += PANEL) {
            float sums[ROWS][PANEL];
            int64_t count = least(rows - first, chunk);
            for (int64_t r = 0; r < count; r++) memcpy(sums[r], bias + o, sizeof sums[r]);
            for (int64_t k = 0; k < width; k += INPUTS)
                for (int64_t r = 0; r < count; r += AT_ONCE)
                    SOME(count - r, multiply_tile, FP32, (const word *)input + (first + r) * width + k, width, 1,
                         (const word *)weights + o * width + k * PANEL, least(width - k, INPUTS), sums[r], PANEL, 1);
            store_tile(sums, count, activation, out, FP32, first * outs + o, outs, least(outs - o, PANEL));
        }
    return 0;
}
#endif

#if defined(INT8_DOT) || defined(AVX2)
// The weights of PANEL outputs. A quad, four inputs' weights of one output, lies beside those of the other outputs.
struct panel {
    const int8_t *weights;
    const float *scale, *bias;
    const int32_t *offset;  // what 128 too much in all codes of a row adds to a sum
};

// sums + the products of quads of codes and weights. With intrinsics, GCC 12 copies the sums to other registers and
// back in every round.
INLINE void add_products(integers *sums, integers codes, integers weights)
{
#ifdef INT8_DOT
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(codes), "v"(weights));
#else
    integers pairs;
    __asm__("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0"
            : "+x"(*sums), "=&x"(pairs) : "x"(codes), "x"(weights), "x"(_mm256_set1_epi16(1)));
#endif
}

#ifdef AMX
static const struct { uint8_t palette, unused[15]; uint16_t row_bytes[16]; uint8_t rows[16]; } TILES = {
    1, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
enum { TILE_INPUTS = 64 };

// Linux lets a process use tiles once it has asked (its documentation, x86/xstate). Returns 0 if it may.
EXPORT int ask_for(int feature)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, feature) != 0;
}

// Each thread configures its own tiles, and releases them after use.
INLINE void begin_tiles(void) { _tile_loadconfig(&TILES); }
INLINE void end_tiles(void) { _tile_release(); }

// Adds the products of the first inputs, whole tiles of them, to the sums of 16 rows, or of 32 if rows > 16. Codes
// have so many rows, whatever the last ones hold. Returns the number of quads that are done. Tiles 0 to 3 are sums,
// 4 and 5 codes, 6 and 7 weights.
INLINE int64_t add_tiles(int rows, const uint8_t *codes, int64_t stride, const int8_t *weights, const int8_t *next,
                         int64_t next_step, integers sums[][2])
{
    const int64_t row = sizeof *sums, quads = 4 * PANEL;  // bytes
    __asm__ volatile("" ::: "memory");  // GCC does not know that tiles are loaded from memory
    _tile_loadd(0, &sums[0][0], row);
    _tile_loadd(1, &sums[0][1], row);
    if (rows > 16) {
        _tile_loadd(2, &sums[16][0], row);
        _tile_loadd(3, &sums[16][1], row);
    }
    int64_t k = 0;
    for (; k + TILE_INPUTS <= stride; k += TILE_INPUTS) {
        for (int64_t quad = k / 4; quad < (k + TILE_INPUTS) / 4; quad++)
            _mm_prefetch(next + next_step * quad, _MM_HINT_T0);
        _tile_loadd(6, weights + k * PANEL, quads);
        _tile_loadd(7, weights + k * PANEL + quads / 2, quads);
        _tile_loadd(4, codes + k, stride);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        if (rows > 16) {
            _tile_loadd(5, codes + 16 * stride + k, stride);
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        }
    }
    _tile_stored(0, &sums[0][0], row);
    _tile_stored(1, &sums[0][1], row);
    if (rows > 16) {
        _tile_stored(2, &sums[16][0], row);
        _tile_stored(3, &sums[16][1], row);
    }
    return k / 4;
}
#else
INLINE void begin_tiles(void) {}
INLINE void end_tiles(void) {}
#endif

// tile[r][o] = bias[o] + peak[r] * scale[o] * (codes[r] . weights[o] - offset[o]). It also fetches `next` into the
// cache.
INLINE void multiply_codes(int rows, const uint8_t *codes, int64_t stride, const float *peak, struct panel panel,
                           const int8_t *next, int64_t next_step, float tile[][PANEL])
{
    const integers *weights = (const integers *)panel.weights, *offset = (const integers *)panel.offset;
    const vector *scale = (const vector *)panel.scale, *bias = (const vector *)panel.bias;
    integers sums[TILE_ROWS][2];
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++) sums[r][half] = -offset[half];
    int64_t k = 0;
#ifdef AMX
    k = add_tiles(rows, codes, stride, panel.weights, next, next_step, sums);
#endif
    for (; k < stride / 4; k++) {
        integers low = weights[2 * k], high = weights[2 * k + 1];
        _mm_prefetch(next + next_step * k, _MM_HINT_T0);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            int32_t quad;
            memcpy(&quad, codes + r * stride + 4 * k, sizeof quad);
            add_products(&sums[r][0], (integers){0} + quad, low);
            add_products(&sums[r][1], (integers){0} + quad, high);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++) {
            vector product = __builtin_convertvector(sums[r][half], vector) * scale[half];
            *(vector *)(tile[r] + half * VECTOR) = product * peak[r] + bias[half];
        }
}

static void multiply_panel(const uint8_t *codes, int64_t stride, const float *peak, int64_t rows, struct panel panel,
                           int has_next, int with_gelu, void *out, int out_kind, int64_t to, int64_t outs,
                           int64_t count)
{
    int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, tile_rows = (rows + tiles - 1) / tiles;
    int64_t step = has_next ? (4 * PANEL + tiles - 1) / tiles : 0;
    const int8_t *next = panel.weights + (has_next ? PANEL * stride : 0);
    float tile[TILE_ROWS][PANEL];
#ifdef AMX
    tile_rows = TILE_ROWS;  // a part of 16 rows takes as long as all of them
#endif
    for (int64_t rest = rows; rest > 0; rest -= tile_rows) {
        int64_t here = least(rest, tile_rows);
#ifdef AMX
        multiply_codes(here, codes, stride, peak, panel, next, step, tile);
#else
        switch (here) {
#define CASE(n) case n: multiply_codes(n, codes, stride, peak, panel, next, step, tile); break
            CASE(1); CASE(2); CASE(3); CASE(4); CASE(5);
#ifndef AVX2
            CASE(6); CASE(7); CASE(8);
#endif
        }
#endif
        store_tile(tile, here, with_gelu, out, out_kind, to, outs, count);
        codes += here * stride;
        peak += here;
        to += here * outs;
        next += step * (stride / 4);
    }
}

// out (N, outs) = act(bias + input weights^T) with rows of input (N, width) quantised; see struct panel for the
// weights. scale, offset and bias are as long as all panels.
EXPORT int multiply(const void *input, int kind, const int8_t *weights, const float *scale, const int32_t *offset,
                    const float *bias, int with_gelu, void *out, int out_kind, int64_t rows, int64_t width,
                    int64_t outs, int threads)
{
    int64_t stride = round_up(width, 4), panels = (outs + PANEL - 1) / PANEL;
    int64_t chunk = ROWS_AT_ONCE / stride / TILE_ROWS * TILE_ROWS;
    chunk = chunk < TILE_ROWS ? TILE_ROWS : least(chunk, rows);
    uint8_t *codes = allocate(round_up(chunk, TILE_ROWS) * (sizeof(float) + stride));  // on cache lines, as tiles want
    if (codes == NULL) return 1;
    float *peak = (float *)(codes + round_up(chunk, TILE_ROWS) * stride);
#pragma omp parallel num_threads(threads) if (rows * width * outs > 8 * SMALL)
    for (int64_t first = 0; first < rows; first += chunk) {
        int64_t count = least(rows - first, chunk);
        begin_tiles();
#pragma omp for
        for (int64_t r = 0; r < count; r++) {
            float scratch[width];
            peak[r] = quantize(codes + r * stride, floats(input, kind, (first + r) * width, width, scratch), width);
            memset(codes + r * stride + width, 0, stride - width);
        }
#pragma omp for
        for (int64_t p = 0; p < panels; p++) {
            int64_t o = p * PANEL;
            struct panel panel = {weights + o * stride, scale + o, bias + o, offset + o};
            multiply_panel(codes, stride, peak, count, panel, p + 1 < panels, with_gelu, out, out_kind,
                           first * outs + o, outs, least(outs - o, PANEL));
        }
        end_tiles();
    }
    free(codes);
    return 0;
}
#endif

#ifdef INT8_DOT
// What a head's queries are multiplied by, as panels with room for whole KEYS_AT_ONCE; and what each thread needs.
struct packed {
    int8_t *keys, *values;  // the inputs of values are positions
    float *key_scale, *key_bias, value_scale[WIDTH];
    int32_t *key_offset;
    float *scores;        // of QUERY_ROWS queries, panel by panel
    uint8_t *high, *low;  // the two halves of their weights, row by row
    int64_t count;        // keys, rounded up to whole KEYS_AT_ONCE
    float spoilt;         // 0, or NaN if a number of a key is not finite
};
enum { BYTES_PER_KEY = 2 * WIDTH + 3 * 4 + QUERY_ROWS * (4 + 2) };  // of struct packed

// The rows of a fused product lie pages apart, where hardware does not fetch them in time.
INLINE void fetch_row(const void *numbers, int kind, int64_t offset)
{
    const char *row = (const char *)numbers + offset * SIZES[kind];
    for (int64_t i = 0; i < WIDTH * SIZES[kind]; i += CACHE_LINE) _mm_prefetch(row + i, _MM_HINT_T0);
}

// Quantises the visible keys and values of a head. With the scale and mask that keys get, the weight is 2^score, not
// e^score.
static void pack_head(struct packed *packed, struct head head, const float *mask)
{
    const float log2_e = 1.44269504f;
    const int64_t *offsets = head.offsets, count = head.count;
    float rows[4][WIDTH], size[WIDTH] = {0};
    uint8_t codes[WIDTH];
    packed->count = round_up(count, KEYS_AT_ONCE);
    packed->spoilt = 0;
    memset(packed->keys, 0, packed->count * WIDTH);
    memset(packed->values, 0, packed->count * WIDTH);
    for (int64_t j = 0; j < count; j++) {
        int8_t *panel = packed->keys + j / PANEL * PANEL * WIDTH + j % PANEL * 4;
        if (j + LANES < count) fetch_row(head.keys, head.kind, offsets[j + LANES]);
        float peak = quantize(codes, floats(head.keys, head.kind, offsets[j], WIDTH, rows[0]), WIDTH);
        int32_t sum = 0;
        for (int d = 0; d < WIDTH; d++) {
            codes[d] ^= 0x80;  // subtracts 128
            sum += (int8_t)codes[d];
        }
        for (int quad = 0; quad < WIDTH / 4; quad++) memcpy(panel + quad * 4 * PANEL, codes + 4 * quad, 4);
        packed->key_scale[j] = peak * (log2_e / (127 * 127 * sqrtf(WIDTH)));
        packed->key_offset[j] = 128 * sum;
        packed->key_bias[j] = mask[j] * log2_e;
        packed->spoilt += 0 * peak;
    }
    for (int64_t j = count; j < packed->count; j++) {
        packed->key_scale[j] = packed->key_offset[j] = 0;
        packed->key_bias[j] = -INFINITY;
    }
    for (int64_t j = 0; j < count; j++) {
        const float *value = floats(head.values, head.kind, offsets[j], WIDTH, rows[0]);
        if (j + LANES < count) fetch_row(head.values, head.kind, offsets[j + LANES]);
        for (int d = 0; d < WIDTH; d++) {
            float magnitude = fabsf(value[d]);
            size[d] = magnitude > size[d] || magnitude != magnitude ? magnitude : size[d];  // NaN stays
        }
    }
    for (int d = 0; d < WIDTH; d++) {
        packed->value_scale[d] = (size[d] + FLT_MIN) / 127;
        size[d] = size[d] > 1e-36f ? 1 / size[d] * 127 : 0;  // as in quantize()
    }
    for (int64_t j = 0; j < count; j += 4) {  // count is a multiple of LANES
        for (int i = 0; i < 4; i++) load(rows[i], head.values, head.kind, offsets[j + i], WIDTH);
        for (int half = 0; half < WIDTH / PANEL; half++) {
            int32_t *quads = (int32_t *)(packed->values + (half * packed->count + j) * PANEL);
            for (int o = 0; o < PANEL; o++) {
                int d = half * PANEL + o;
                uint32_t quad = 0;
                for (int i = 0; i < 4; i++) quad |= ((uint32_t)nearest(rows[i][d] * size[d]) & 0xff) << 8 * i;
                quads[o] = quad;
            }
        }
    }
}

// Weights 2^(score - the greatest one) of one query in units of nearly 2^-16, as codes of 16 bits: 8 bits would lose
// the many small weights. Returns their sum.
static uint32_t weigh_scores(const float *scores, int64_t count, uint8_t *high, uint8_t *low)
{
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    const __m512i byte = _mm512_set1_epi16(255);
    __m512 top = _mm512_set1_ps(-INFINITY);
    __m512i sum = _mm512_setzero_si512();
    for (int64_t j = 0; j < count; j += PANEL) {
        const float *from = scores + j * QUERY_ROWS;
        top = _mm512_max_ps(top, _mm512_max_ps(_mm512_loadu_ps(from), _mm512_loadu_ps(from + LANES)));
    }
    top = _mm512_set1_ps(_mm512_reduce_max_ps(top));
    for (int64_t j = 0; j < count; j += KEYS_AT_ONCE) {
        __m512i codes[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            __m512 x = _mm512_loadu_ps(scores + (j + i / 2 * PANEL) * QUERY_ROWS + i % 2 * LANES);
            x = _mm512_max_ps(_mm512_set1_ps(-100), _mm512_sub_ps(x, top));  // -inf less -inf would be NaN
            __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
            x = _mm512_sub_ps(x, n);
            // 65535 * 2^x for |x| <= 1/2, to 3e-6 of it
            __m512 power = _mm512_fmadd_ps(x, _mm512_set1_ps(627.1765f), _mm512_set1_ps(3664.577f));
            power = _mm512_fmadd_ps(x, power, _mm512_set1_ps(15744.62f));
            power = _mm512_fmadd_ps(x, power, _mm512_set1_ps(45423.74f));
            power = _mm512_fmadd_ps(x, power, _mm512_set1_ps(65534.95f));
            codes[i] = _mm512_cvtps_epi32(_mm512_scalef_ps(power, n));
            sum = _mm512_add_epi32(sum, codes[i]);
        }
        // Packing takes quads of the four registers in turn; permuting them restores the order.
        __m512i first = _mm512_packus_epi32(codes[0], codes[1]), last = _mm512_packus_epi32(codes[2], codes[3]);
        __m512i upper = _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(last, 8));
        __m512i lower = _mm512_packus_epi16(_mm512_and_si512(first, byte), _mm512_and_si512(last, byte));
        _mm512_storeu_si512(high + j, _mm512_permutexvar_epi32(order, upper));
        _mm512_storeu_si512(low + j, _mm512_permutexvar_epi32(order, lower));
    }
    return _mm512_reduce_add_epi32(sum);
}

// Contexts (QUERY_ROWS, WIDTH) of the first of the `rest` queries that are left, which are query_row elements apart.
static void attend_tile(const struct packed *packed, const void *query, int kind, int64_t from, int64_t query_row,
                        int64_t rest, float context[][WIDTH])
{
    static const int32_t no_offset[PANEL];
    static const float no_bias[PANEL];
    uint8_t codes[QUERY_ROWS][WIDTH] = {{0}};
    float peak[QUERY_ROWS] = {0}, high_unit[QUERY_ROWS], low_unit[QUERY_ROWS], scratch[WIDTH];
    float upper[QUERY_ROWS][PANEL], lower[QUERY_ROWS][PANEL];
    int64_t count = packed->count, rows = least(rest, QUERY_ROWS);
    for (int64_t r = 0; r < rows; r++)
        peak[r] = quantize(codes[r], floats(query, kind, from + r * query_row, WIDTH, scratch), WIDTH);
    for (int64_t r = 0; r < rest - rows && r < QUERY_ROWS; r++)
        fetch_row(query, kind, from + (QUERY_ROWS + r) * query_row);
    for (int64_t j = 0; j < count; j += PANEL) {
        struct panel panel = {packed->keys + j * WIDTH, packed->key_scale + j, packed->key_bias + j,
                              packed->key_offset + j};
        multiply_codes(QUERY_ROWS, codes[0], WIDTH, peak, panel, panel.weights, 0,
                       (float(*)[PANEL])(packed->scores + j * QUERY_ROWS));
    }
    for (int r = 0; r < QUERY_ROWS; r++) {
        int64_t at = r * count;
        uint32_t sum = weigh_scores(packed->scores + r * PANEL, count, packed->high + at, packed->low + at);
        low_unit[r] = 1 / (float)sum + 0 * peak[r] + packed->spoilt;  // a score that is not finite makes its row NaN
        high_unit[r] = 256 * low_unit[r];
    }
    for (int d = 0; d < WIDTH; d += PANEL) {
        struct panel panel = {packed->values + d * count, packed->value_scale + d, no_bias, no_offset};
        multiply_codes(QUERY_ROWS, packed->high, count, high_unit, panel, panel.weights, 0, upper);
        multiply_codes(QUERY_ROWS, packed->low, count, low_unit, panel, panel.weights, 0, lower);
        for (int r = 0; r < QUERY_ROWS; r++)
            for (int i = 0; i < PANEL; i++) context[r][d + i] = upper[r][i] + lower[r][i];
    }
}

// Like attend(), for as many queries as keys, which with the values are of one kind, FP32 or BF16, and lie at equal
// strides. All are quantised: queries and keys with one scale for each, values with one scale per dimension of a head.
// The mask has one row for all queries; Dh is WIDTH, the length at most 2^16.
EXPORT int attend_many(const void *query, const void *keys, const void *values, int kind, int64_t article,
                       int64_t head_stride, int64_t row, const void *mask, int mask_kind, int64_t mask_article,
                       void *context, int64_t articles, int64_t heads, int64_t length, int threads)
{
    int64_t room = round_up(length, KEYS_AT_ONCE);
    if (articles * heads * length * length <= SMALL) threads = 1;
    char *memory = allocate(threads * room * BYTES_PER_KEY
                            + articles * (room * (sizeof(int64_t) + sizeof(float)) + sizeof(int64_t)));
    if (memory == NULL) return 1;
    int64_t *offsets = (int64_t *)(memory + threads * room * BYTES_PER_KEY), *counts = offsets + articles * room;
    float *additive = (float *)(counts + articles);
    for (int64_t b = 0; b < articles; b++)
        counts[b] = list_visible(mask, mask_kind, b * mask_article, 0, 1, length, row, offsets + b * room,
                                 additive + b * room, room);
#pragma omp parallel num_threads(threads)
    {
        struct packed packed;
        float contexts[QUERY_ROWS][WIDTH];
        packed.scores = (float *)(memory + omp_get_thread_num() * room * BYTES_PER_KEY);
        packed.key_scale = packed.scores + QUERY_ROWS * room;
        packed.key_bias = packed.key_scale + room;
        packed.key_offset = (int32_t *)(packed.key_bias + room);
        packed.keys = (int8_t *)(packed.key_offset + room);
        packed.values = packed.keys + WIDTH * room;
        packed.high = (uint8_t *)(packed.values + WIDTH * room);
        packed.low = packed.high + QUERY_ROWS * room;
        begin_tiles();
#pragma omp for schedule(dynamic) nowait
        for (int64_t item = 0; item < articles * heads; item++) {
            int64_t b = item / heads, h = item % heads, from = b * article + h * head_stride;
            int64_t skipped = from * SIZES[kind];
            struct head head = {(const char *)keys + skipped, (const char *)values + skipped, kind,
                                offsets + b * room, counts[b], WIDTH};
            pack_head(&packed, head, additive + b * room);
            for (int64_t k = 0; k < length; k += QUERY_ROWS) {
                attend_tile(&packed, query, kind, from + k * row, row, length - k, contexts);
                for (int64_t r = 0; r < least(length - k, QUERY_ROWS); r++)
                    store(context, kind, ((b * length + k + r) * heads + h) * WIDTH, contexts[r], WIDTH);
            }
        }
        end_tiles();
    }
    free(memory);
    return 0;
}
#endif
