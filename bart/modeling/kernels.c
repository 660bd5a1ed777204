// Kernels of inference on CPUs: attention of few queries and in int8, int8 products, and what stands between these.
//
// Shapes: B articles, H heads, K queries of an article (its beams, or positions), L keys, Dh the head width; N rows.
// Plain C, whose inner loops the compiler vectorises. What takes the most time is also written for processors with
// AVX-512: products, and attention with heads of 64, as all published BART models have. -DBART_PLAIN leaves that out.
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512BW__) && !defined(BART_PLAIN)
#include <immintrin.h>
#define AVX512
#ifdef __AVX512BF16__
#define BF16_DOT
#endif
#if defined(__AVX512VNNI__) && !defined(__AMX_INT8__)  // with AMX, oneDNN is the faster one
#define INT8_DOT
#endif
#endif
#define INLINE static inline __attribute__((always_inline))

typedef uint16_t bf16;

enum {
    LANES = 16,     // numbers that are handled at once
    QUERIES = 16,   // queries for which a head's keys and values are read once
    AT_ONCE = 6,    // of them, those whose contexts are summed in registers together
    WIDTH = 64,     // head width of the variants for AVX-512
    AHEAD = 4096,   // bytes; keys this far on are fetched into the cache, across the pages where hardware stops
    CACHE_LINE = 64,  // bytes
    SMALL = 32000,  // numbers below which one thread is about as fast as two
    PANEL = 32,     // outputs whose weights lie together
    TILE_ROWS = 8,  // rows that are multiplied by a panel at once
    KEYS_AT_ONCE = 64,        // keys whose weights are coded at once, a multiple of PANEL
    CODES_AT_ONCE = 1 << 19,  // codes of rows that are multiplied by all panels before the next rows' turn
};
// What keys and values may be. CODES are rows of width numbers of 8 bits, behind which there is their scale, a float.
enum { FP32, BF16, CODES };
static const int64_t SIZES[] = {4, 2, 1};

INLINE float widen(bf16 number)
{
    union { uint32_t bits; float value; } wide = {(uint32_t)number << 16};
    return wide.value;
}

INLINE bf16 narrow(float number)  // to the nearest, of two the even one
{
    union { float value; uint32_t bits; } wide = {number};
    uint32_t rounded = (wide.bits + 0x7fff + (wide.bits >> 16 & 1)) >> 16;
    return number == number ? rounded : 0x7fc0;  // carries must not turn a NaN into a number
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

INLINE void store(void *to, int is_bf16, int64_t offset, const float *from, int64_t count)
{
    if (is_bf16)
        for (int64_t i = 0; i < count; i++) ((bf16 *)to)[offset + i] = narrow(from[i]);
    else
        memcpy((float *)to + offset, from, count * sizeof *from);
}

// Numbers from an offset on as floats: where they are, or else in scratch.
static const float *floats(const void *numbers, int is_bf16, int64_t offset, int64_t count, float *scratch)
{
    if (!is_bf16) return (const float *)numbers + offset;
    load(scratch, numbers, BF16, offset, count);
    return scratch;
}

// e^x for x <= 0, to 2e-7 of it; 0 below -88. With n ln 2 taken off, |x| <= 0.35, which a Taylor series covers.
INLINE float exponential(float x)
{
    const float least = -127 * 0.69314718f;
    x = x < least ? least : x;  // NaN stays NaN
    float n = rintf(x * 1.44269504f);
    x = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, of which n times the first is exact
    float series = 1 + x * (1 + x * (1 / 2.f + x * (1 / 6.f + x * (1 / 24.f + x * (1 / 120.f + x * (1 / 720.f))))));
    union { uint32_t bits; float value; } power = {(uint32_t)((int32_t)n + 127) << 23};
    return series * power.value;
}

// x times the normal distribution's share below x, with erfc(z) = 1 / (1 + a1 z + ... + a6 z^6)^16 to 3e-7 for
// z = |x| / sqrt(2) (Abramowitz & Stegun 7.1.28).
INLINE float gelu(float x)
{
    float z = 0.70710678f * fabsf(x);
    float series = 0.0092705272f + z * (0.0001520143f + z * (0.0002765672f + z * 0.0000430638f));
    series = 1 + z * (0.0705230784f + z * (0.0422820123f + z * series));
    float power = series * series;
    power *= power;
    power *= power;
    return (x > 0 ? x : 0) - 0.70710678f * z / (power * power);
}

// ---------------------------------------------------------------------------------------------------- attention

// The columns that any of an article's queries may read: where their keys begin, and their mask. They are padded to
// whole LANES with copies of the last one that are hidden.
static int64_t list_visible(const void *mask, int mask_is_bf16, int64_t mask_from, int64_t mask_row, int64_t rows,
                            int64_t length, int64_t key_row, int64_t *offsets, float *additive, int64_t room)
{
    int64_t count = 0;
    for (int64_t row = 0; row < rows; row++) {
        float *to = additive + row * room;
        if (mask == NULL) memset(to, 0, length * sizeof *to);
        else load(to, mask, mask_is_bf16, mask_from + row * mask_row, length);
    }
    for (int64_t l = 0; l < length; l++) {
        int seen = 0;
        for (int64_t row = 0; row < rows; row++) seen |= additive[row * room + l] != -INFINITY;
        if (!seen) continue;
        for (int64_t row = 0; row < rows; row++) additive[row * room + count] = additive[row * room + l];
        offsets[count++] = l * key_row;
    }
    int64_t padded = (count + LANES - 1) / LANES * LANES;
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

// Summed in lanes, which may be done in any order.
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

// scores[k][j] = query[k] . the key at offsets[j], apart from the scale of CODES
INLINE void score(const float *query, int64_t queries, const void *keys, int kind, const int64_t *offsets,
                  int64_t count, int64_t width, float *scores)
{
    float key[width];
    for (int64_t j = 0; j < count; j++) {
        load(key, keys, kind, offsets[j], width);
        for (int64_t k = 0; k < queries; k++) scores[k * count + j] = dot(query + k * width, key, width);
    }
}

// context[k] = sum over j of weights[k][j] * the value at offsets[j], apart from the scale of CODES
INLINE void weigh(const float *weights, int64_t queries, const void *values, int kind, const int64_t *offsets,
                  int64_t count, int64_t width, float *context)
{
    float value[4][width];
    memset(context, 0, queries * width * sizeof *context);
    for (int64_t j = 0; j < count; j += 4) {
        for (int i = 0; i < 4; i++) load(value[i], values, kind, offsets[j + i], width);
        for (int64_t k = 0; k < queries; k++) {
            const float *w = weights + k * count + j;
            float *sums = context + k * width;
#pragma omp simd
            for (int64_t d = 0; d < width; d++)
                sums[d] += w[0] * value[0][d] + w[1] * value[1][d] + w[2] * value[2][d] + w[3] * value[3][d];
        }
    }
}

// numbers[k][j] *= the scale of the CODES at offsets[j]
static void rescale(float *numbers, int64_t queries, const int8_t *codes, const int64_t *offsets, int64_t count,
                    int64_t width)
{
    for (int64_t j = 0; j < count; j += LANES) {
        float scales[LANES];
        for (int i = 0; i < LANES; i++) memcpy(scales + i, codes + offsets[j + i] + width, sizeof *scales);
        for (int64_t k = 0; k < queries; k++)
            for (int i = 0; i < LANES; i++) numbers[k * count + j + i] *= scales[i];
    }
}

#ifdef AVX512
// work(n, ...) for the least of n and AT_ONCE, as constants, so that sums stay in registers.
#define SOME(n, work, ...) \
    switch (n) { \
    case 1: work(1, __VA_ARGS__); break; \
    case 2: work(2, __VA_ARGS__); break; \
    case 3: work(3, __VA_ARGS__); break; \
    case 4: work(4, __VA_ARGS__); break; \
    case 5: work(5, __VA_ARGS__); break; \
    default: work(AT_ONCE, __VA_ARGS__); \
    }

// In each quarter of the result, the sums of that quarter's four numbers in each of four registers.
INLINE __m512 sum_quarters(const __m512 *sum)
{
    __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(sum[0], sum[1]), _mm512_unpackhi_ps(sum[0], sum[1]));
    __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(sum[2], sum[3]), _mm512_unpackhi_ps(sum[2], sum[3]));
    __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)), _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
}
#endif

#ifdef BF16_DOT
// Scores of 4 or 8 queries. A register has 8 numbers of each of 4 queries, and these 8 numbers of a key four times; so
// a sum of products has, for each query, 4 parts of its score.
INLINE void score_fours(int fours, const __m512i query[][WIDTH / 8], const bf16 *keys, const int64_t *offsets,
                        int64_t count, float *scores)
{
    for (int64_t j = 0; j < count; j += 4) {
        __m512 sums[2][4];
        for (int four = 0; four < fours; four++)
            for (int i = 0; i < 4; i++) sums[four][i] = _mm512_setzero_ps();
        for (int i = 0; i < 4; i++)
            for (int part = 0; part < WIDTH / 8; part++) {
                const __m128i *numbers = (const __m128i *)(keys + offsets[j + i] + 8 * part);
                __m512bh repeated = (__m512bh)_mm512_broadcast_i32x4(_mm_loadu_si128(numbers));
                for (int four = 0; four < fours; four++)
                    sums[four][i] = _mm512_dpbf16_ps(sums[four][i], repeated, (__m512bh)query[four][part]);
            }
        for (int four = 0; four < fours; four++) {
            __m512 total = sum_quarters(sums[four]);
            float *to = scores + 4 * four * count + j;
            _mm_storeu_ps(to, _mm512_extractf32x4_ps(total, 0));
            _mm_storeu_ps(to + count, _mm512_extractf32x4_ps(total, 1));
            _mm_storeu_ps(to + 2 * count, _mm512_extractf32x4_ps(total, 2));
            _mm_storeu_ps(to + 3 * count, _mm512_extractf32x4_ps(total, 3));
        }
    }
}

static void score_bf16(const float *query, int64_t queries, const bf16 *keys, const int64_t *offsets, int64_t count,
                       float *scores)
{
    bf16 narrowed[QUERIES][WIDTH] = {{0}};
    __m512i numbers[QUERIES / 4][WIDTH / 8];
    store(narrowed, 1, 0, query, queries * WIDTH);
    for (int64_t k = 0; k < (queries + 3) / 4 * 4; k++)
        for (int part = 0; part < WIDTH / 8; part++)
            memcpy((bf16 *)&numbers[k / 4][part] + k % 4 * 8, &narrowed[k][8 * part], 8 * sizeof(bf16));
    for (int64_t k = 0; k < queries; k += 8) {
        if (queries - k > 4) score_fours(2, numbers + k / 4, keys, offsets, count, scores + k * count);
        else score_fours(1, numbers + k / 4, keys, offsets, count, scores + k * count);
    }
}

// Contexts of `queries` queries; weights are bf16, and taken two columns at a time.
INLINE void weigh_some_bf16(int queries, const bf16 *weights, const bf16 *values, const int64_t *offsets,
                            int64_t count, float *context)
{
    const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    __m512 sums[AT_ONCE][4];
    for (int k = 0; k < queries; k++)
        for (int i = 0; i < 4; i++) sums[k][i] = _mm512_setzero_ps();
    for (int64_t j = 0; j < count; j += 2) {
        __m512i pairs[4];
        for (int half = 0; half < 2; half++) {
            __m512i one = _mm512_loadu_si512(values + offsets[j] + 32 * half);
            __m512i two = _mm512_loadu_si512(values + offsets[j + 1] + 32 * half);
            pairs[2 * half] = _mm512_unpacklo_epi16(one, two);
            pairs[2 * half + 1] = _mm512_unpackhi_epi16(one, two);
        }
        for (int k = 0; k < queries; k++) {
            __m512i weight = _mm512_set1_epi32(*(const int32_t *)(weights + k * count + j));
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

static void weigh_bf16(float *weights, int64_t queries, const bf16 *values, const int64_t *offsets, int64_t count,
                       float *context)
{
    bf16 *narrowed = (bf16 *)weights;  // in the same place: each number is read before its place is written
    for (int64_t i = 0; i < queries * count; i += LANES)
        _mm256_storeu_si256((__m256i *)(narrowed + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(weights + i)));
    for (int64_t k = 0; k < queries; k += AT_ONCE)
        SOME(queries - k, weigh_some_bf16, narrowed + k * count, values, offsets, count, context + k * WIDTH);
}
#endif

#ifdef AVX512
INLINE __m512 load_16(const void *numbers, int kind, int64_t offset)
{
    const void *from = (const char *)numbers + offset * SIZES[kind];
    if (kind == FP32) return _mm512_loadu_ps(from);
    if (kind == CODES) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from)), 16));
}

// Meanwhile the values are fetched into the cache.
INLINE void score_some(int queries, const float *query, const void *keys, const void *values, int kind,
                       const int64_t *offsets, int64_t count, float *scores)
{
    const int64_t size = SIZES[kind];
    for (int64_t j = 0; j < count; j += 4) {
        __m512 sums[AT_ONCE][4];
        for (int k = 0; k < queries; k++)
            for (int i = 0; i < 4; i++) sums[k][i] = _mm512_setzero_ps();
#pragma GCC unroll 4
        for (int d = 0; d < WIDTH; d += LANES) {
            __m512 key[4];
            for (int i = 0; i < 4; i++) {
                int64_t offset = offsets[j + i] + d;
                key[i] = load_16(keys, kind, offset);
                if (d * size % CACHE_LINE == 0) {
                    _mm_prefetch((const char *)keys + offset * size + AHEAD, _MM_HINT_T0);
                    _mm_prefetch((const char *)values + offset * size, _MM_HINT_T1);
                }
            }
            for (int k = 0; k < queries; k++) {
                __m512 numbers = _mm512_loadu_ps(query + k * WIDTH + d);
                for (int i = 0; i < 4; i++) sums[k][i] = _mm512_fmadd_ps(key[i], numbers, sums[k][i]);
            }
        }
        for (int k = 0; k < queries; k++) {
            __m512 quarters = sum_quarters(sums[k]);
            __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps(quarters, 1));
            __m128 total = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
            _mm_storeu_ps(scores + k * count + j, total);
        }
    }
}

INLINE void weigh_some(int queries, const float *weights, const void *values, int kind, const int64_t *offsets,
                       int64_t count, float *context)
{
    __m512 sums[AT_ONCE][4];
    for (int k = 0; k < queries; k++)
        for (int i = 0; i < 4; i++) sums[k][i] = _mm512_setzero_ps();
    for (int64_t j = 0; j < count; j++) {
        __m512 value[4];
        for (int i = 0; i < 4; i++) value[i] = load_16(values, kind, offsets[j] + i * LANES);
        for (int k = 0; k < queries; k++) {
            __m512 weight = _mm512_set1_ps(weights[k * count + j]);
            for (int i = 0; i < 4; i++) sums[k][i] = _mm512_fmadd_ps(value[i], weight, sums[k][i]);
        }
    }
    for (int k = 0; k < queries; k++)
        for (int i = 0; i < 4; i++) _mm512_storeu_ps(context + k * WIDTH + i * LANES, sums[k][i]);
}

INLINE void score_of_kind(const float *query, int64_t queries, const void *keys, const void *values, int kind,
                          const int64_t *offsets, int64_t count, float *scores)
{
    for (int64_t k = 0; k < queries; k += AT_ONCE)
        SOME(queries - k, score_some, query + k * WIDTH, keys, values, kind, offsets, count, scores + k * count);
}

INLINE void weigh_of_kind(const float *weights, int64_t queries, const void *values, int kind, const int64_t *offsets,
                          int64_t count, float *context)
{
    for (int64_t k = 0; k < queries; k += AT_ONCE)
        SOME(queries - k, weigh_some, weights + k * count, values, kind, offsets, count, context + k * WIDTH);
}

static void score_64(const float *query, int64_t queries, const void *keys, const void *values, int kind,
                     const int64_t *offsets, int64_t count, float *scores)
{
    if (kind == FP32) score_of_kind(query, queries, keys, values, FP32, offsets, count, scores);
    else if (kind == CODES) score_of_kind(query, queries, keys, values, CODES, offsets, count, scores);
#ifdef BF16_DOT
    else score_bf16(query, queries, keys, offsets, count, scores);
#else
    else score_of_kind(query, queries, keys, values, BF16, offsets, count, scores);
#endif
}

static void weigh_64(float *weights, int64_t queries, const void *values, int kind, const int64_t *offsets,
                     int64_t count, float *context)
{
    if (kind == FP32) weigh_of_kind(weights, queries, values, FP32, offsets, count, context);
    else if (kind == CODES) weigh_of_kind(weights, queries, values, CODES, offsets, count, context);
#ifdef BF16_DOT
    else weigh_bf16(weights, queries, values, offsets, count, context);
#else
    else weigh_of_kind(weights, queries, values, BF16, offsets, count, context);
#endif
}
#else  // a constant width makes shorter loops
#define score_64(query, n, keys, values, kind, offsets, count, to) score(query, n, keys, kind, offsets, count, WIDTH, to)
#define weigh_64(weights, n, values, kind, offsets, count, to) weigh(weights, n, values, kind, offsets, count, WIDTH, to)
#endif

// context (B, K, H * Dh) = softmax(query keys^T / sqrt(Dh) + mask) values; strides count elements, of one byte if keys
// and values are CODES. The mask is NULL if all may be read, and has one row for all queries if mask_rows is 1; no query
// may find all columns hidden.
void attend(const void *query, int query_is_bf16, int64_t query_article, int64_t query_head, int64_t query_row,
            const void *keys, const void *values, int kind, int64_t key_article, int64_t key_head, int64_t key_row,
            const void *mask, int mask_is_bf16, int64_t mask_article, int64_t mask_row, int64_t mask_rows,
            void *context, int64_t articles, int64_t heads, int64_t queries, int64_t length, int64_t width, int threads)
{
    int64_t room = (length + LANES - 1) / LANES * LANES;
    int64_t group = queries < QUERIES ? queries : QUERIES, groups = (queries + group - 1) / group;
    int small = articles * heads * queries * length * width < 4 * SMALL;
    int64_t *counts = malloc(articles * sizeof *counts);
    int64_t *offsets = malloc(articles * room * sizeof *offsets);
    float *additive = malloc(articles * mask_rows * room * sizeof *additive);
    for (int64_t b = 0; b < articles; b++)
        counts[b] = list_visible(mask, mask_is_bf16, b * mask_article, mask_row, mask_rows, length, key_row,
                                 offsets + b * room, additive + b * mask_rows * room, room);
#pragma omp parallel num_threads(threads) if (!small)
    {
        float *scores = malloc(((group + 3) / 4 * 4 * room + 2 * group * width) * sizeof *scores);
        float *rows = scores + (group + 3) / 4 * 4 * room, *sums = rows + group * width, divisors[QUERIES];
#pragma omp for schedule(dynamic) nowait
        for (int64_t item = 0; item < articles * heads * groups; item++) {
            int64_t b = item / groups / heads, h = item / groups % heads, k0 = item % groups * group;
            int64_t here = queries - k0 < group ? queries - k0 : group, count = counts[b];
            int64_t from = b * query_article + h * query_head + k0 * query_row;
            int64_t skipped = (b * key_article + h * key_head) * SIZES[kind];
            const void *key = (const char *)keys + skipped, *value = (const char *)values + skipped;
            const int64_t *list = offsets + b * room;
            for (int64_t k = 0; k < here; k++)
                load(rows + k * width, query, query_is_bf16, from + k * query_row, width);
            if (width == WIDTH) score_64(rows, here, key, value, kind, list, count, scores);
            else score(rows, here, key, kind, list, count, width, scores);
            if (kind == CODES) rescale(scores, here, key, list, count, width);
            for (int64_t k = 0; k < here; k++) {
                const float *mask_of_row = additive + (b * mask_rows + (mask_rows == 1 ? 0 : k0 + k)) * room;
                divisors[k] = exponentials(scores + k * count, mask_of_row, 1 / sqrtf(width), count);
            }
            if (kind == CODES) rescale(scores, here, value, list, count, width);
            if (width == WIDTH) weigh_64(scores, here, value, kind, list, count, sums);
            else weigh(scores, here, value, kind, list, count, width, sums);
            for (int64_t k = 0; k < here; k++) {
                for (int64_t d = 0; d < width; d++) sums[k * width + d] /= divisors[k];
                store(context, query_is_bf16, ((b * queries + k0 + k) * heads + h) * width, sums + k * width, width);
            }
        }
        free(scores);
    }
    free(counts);
    free(offsets);
    free(additive);
}

// --------------------------------------------------------------------------------------------------------- rows

// codes = 128 + 127 row / peak, to the nearest, with peak = max |row| + FLT_MIN; returns peak.
static float quantize(uint8_t *codes, const float *row, int64_t width)
{
    const uint32_t *bits = (const uint32_t *)row;
    uint32_t top = 0;
    // The bits of numbers that are not negative order as the numbers do, and NaN is above all.
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < width; i++) {
        uint32_t size = bits[i] & 0x7fffffff;
        top = size > top ? size : top;
    }
    union { uint32_t bits; float value; } peak = {top};
    peak.value += FLT_MIN;
    float scale = peak.value > 1e-36f ? 1 / peak.value * 127 : 0;  // as torch divides; it would else be infinite
    for (int64_t i = 0; i < width; i++) codes[i] = 128 + (int32_t)rintf(row[i] * scale);
    return peak.value;
}

// Parts and heads of rows (B, L, parts * H * Dh) -> CODES (parts, B, H, L, Dh + 4).
void code_heads(const void *input, int is_bf16, int8_t *codes, int64_t articles, int64_t length, int64_t parts,
                int64_t heads, int64_t width, int threads)
{
    int64_t vectors = parts * heads, room = width + sizeof(float);
#pragma omp parallel num_threads(threads) if (articles * length * vectors * width > SMALL)
    {
        float scratch[width];
        uint8_t unsigned_codes[width];
#pragma omp for collapse(2) nowait
        for (int64_t b = 0; b < articles; b++)
            for (int64_t vector = 0; vector < vectors; vector++)
                for (int64_t l = 0; l < length; l++) {
                    int64_t from = ((b * length + l) * vectors + vector) * width;
                    int64_t head = (vector / heads * articles + b) * heads + vector % heads;
                    int8_t *to = codes + (head * length + l) * room;
                    float scale = quantize(unsigned_codes, floats(input, is_bf16, from, width, scratch), width) / 127;
                    for (int64_t d = 0; d < width; d++) to[d] = unsigned_codes[d] ^ 0x80;  // less 128
                    memcpy(to + width, &scale, sizeof scale);
                }
    }
}

// What follows a matrix product, row by row; each step is left out where its arguments are NULL:
//   row = bias + input * peak; row = gelu(row); out = row; codes, code_peak = quantize(row).
// is_bf16 holds for input, out_is_bf16 for out, which may be the place of input.
void finish_rows(const void *input, int is_bf16, const float *peak, const float *bias, int with_gelu, void *out,
                 int out_is_bf16, uint8_t *codes, float *code_peak, int64_t rows, int64_t width, int threads)
{
    int small = rows * width * (with_gelu ? 4 : 1) < SMALL;
#pragma omp parallel num_threads(threads) if (rows > 1 && !small)
    {
        float *scratch = malloc(2 * width * sizeof *scratch);
#pragma omp for nowait
        for (int64_t r = 0; r < rows; r++) {
            float *to = out != NULL && !out_is_bf16 ? (float *)out + r * width : scratch;
            const float *row = floats(input, is_bf16, r * width, width, scratch + width);
            if (peak != NULL) {
                float scale = peak[r];
#pragma omp simd
                for (int64_t i = 0; i < width; i++) to[i] = bias[i] + row[i] * scale;
                row = to;
            }
            if (with_gelu) {
                for (int64_t i = 0; i < width; i++) to[i] = gelu(row[i]);
                row = to;
            }
            if (out_is_bf16) store(out, 1, r * width, row, width);
            if (codes != NULL) code_peak[r] = quantize(codes + r * width, row, width);
        }
        free(scratch);
    }
}

// out = normalised hidden + update, with mean 0 and variance 1 (plus epsilon) of each row, times weight plus bias.
void add_and_norm(const float *hidden, const float *update, const float *weight, const float *bias, float epsilon,
                  float *out, int64_t rows, int64_t width, int threads)
{
#pragma omp parallel for num_threads(threads) if (rows * width > SMALL)
    for (int64_t r = 0; r < rows; r++) {
        const float *a = hidden + r * width, *b = update + r * width;
        float *to = out + r * width, sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) {
            to[i] = a[i] + b[i];
            sum += to[i];
        }
        float mean = sum / width;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < width; i++) squares += (to[i] - mean) * (to[i] - mean);
        float scale = 1 / sqrtf(squares / width + epsilon);
        for (int64_t i = 0; i < width; i++) to[i] = (to[i] - mean) * scale * weight[i] + bias[i];
    }
}

// rows -> the logarithms of their softmax, in place.
void log_softmax(float *rows, int64_t count, int64_t width, int threads)
{
#pragma omp parallel for num_threads(threads) if (count * width > SMALL)
    for (int64_t r = 0; r < count; r++) {
        float *row = rows + r * width, top = -INFINITY, sum = 0;
#pragma omp simd reduction(max : top)
        for (int64_t i = 0; i < width; i++) top = row[i] > top ? row[i] : top;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) sum += exponential(row[i] - top);
        float rest = logf(sum);
        for (int64_t i = 0; i < width; i++) row[i] = row[i] - top - rest;
    }
}

// ----------------------------------------------------------------------------------------------------- products

// Whether what is here for AVX-512 is in use; whether multiply() is there.
int is_avx512(void)
{
#ifdef AVX512
    return 1;
#else
    return 0;
#endif
}

int multiplies(void)
{
#ifdef INT8_DOT
    return 1;
#else
    return 0;
#endif
}

#ifdef INT8_DOT
// _mm512_dpbusd_epi32, for which GCC 12 copies the sums to other registers and back in every round.
INLINE void add_products(__m512i *sum, __m512i codes, __m512i weights)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(codes), "v"(weights));
}

// tile[r][o] = bias[o] + peak[r] * scale[o] * (codes[r] . weights[o] - offset[o]). A quad, four codes of one row, is
// multiplied by those of the panel's outputs, which lie together. Meanwhile `next` is fetched into the cache.
INLINE void multiply_tile(int rows, const uint8_t *codes, int64_t stride, const float *peak, const int8_t *weights,
                          const float *scale, const int32_t *offset, const float *bias, const int8_t *next,
                          int64_t next_step, float tile[][PANEL])
{
    __m512i sums[TILE_ROWS][2];
    for (int half = 0; half < 2; half++) {
        __m512i less = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_loadu_si512(offset + half * LANES));
        for (int r = 0; r < rows; r++) sums[r][half] = less;
    }
    for (int64_t k = 0; k < stride / 4; k++) {
        __m512i low = _mm512_loadu_si512(weights + 4 * PANEL * k);
        __m512i high = _mm512_loadu_si512(weights + 4 * PANEL * k + 64);
        _mm_prefetch(next + next_step * k, _MM_HINT_T1);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            int32_t quad;
            memcpy(&quad, codes + r * stride + 4 * k, sizeof quad);
            add_products(&sums[r][0], _mm512_set1_epi32(quad), low);
            add_products(&sums[r][1], _mm512_set1_epi32(quad), high);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++) {
            int i = half * LANES;
            __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][half]), _mm512_loadu_ps(scale + i));
            product = _mm512_fmadd_ps(product, _mm512_set1_ps(peak[r]), _mm512_loadu_ps(bias + i));
            _mm512_storeu_ps(tile[r] + i, product);
        }
}

static void multiply_panel(const uint8_t *codes, int64_t stride, const float *peak, int64_t rows, const int8_t *weights,
                           const float *scale, const int32_t *offset, const float *bias, int has_next, int with_gelu,
                           void *out, int out_is_bf16, int64_t to, int64_t outs, int64_t count)
{
    int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, rest = rows, tile_rows = (rows + tiles - 1) / tiles;
    int64_t step = has_next ? (4 * PANEL + tiles - 1) / tiles : 0;
    const int8_t *next = weights + (has_next ? PANEL * stride : 0);
    float tile[TILE_ROWS][PANEL];
    for (; rest > 0; rest -= tile_rows) {
        int64_t here = rest < tile_rows ? rest : tile_rows;
        switch (here) {
#define CASE(n) \
    case n: multiply_tile(n, codes, stride, peak, weights, scale, offset, bias, next, step, tile); break
            CASE(1); CASE(2); CASE(3); CASE(4); CASE(5); CASE(6); CASE(7); CASE(8);
        }
        for (int64_t r = 0; r < here; r++) {
            if (with_gelu)
                for (int i = 0; i < PANEL; i++) tile[r][i] = gelu(tile[r][i]);
            if (count == PANEL) store(out, out_is_bf16, to + r * outs, tile[r], PANEL);
            else store(out, out_is_bf16, to + r * outs, tile[r], count);
        }
        codes += here * stride;
        peak += here;
        to += here * outs;
        next += step * (stride / 4);
    }
}

// out = act(bias + input weights^T) with input rows quantized as above, for packed weights: panels of PANEL outputs, in
// each of which four inputs' weights of one output lie together; scale, offset and bias are as long as all panels.
void multiply(const void *input, int is_bf16, const int8_t *weights, const float *scale, const int32_t *offset,
              const float *bias, int with_gelu, void *out, int out_is_bf16, int64_t rows, int64_t width, int64_t outs,
              int threads)
{
    int64_t stride = (width + 3) / 4 * 4, panels = (outs + PANEL - 1) / PANEL;
    int64_t chunk = CODES_AT_ONCE / stride / TILE_ROWS * TILE_ROWS;
    chunk = chunk < TILE_ROWS ? TILE_ROWS : chunk < rows ? chunk : rows;
    uint8_t *codes = malloc(chunk * stride);
    float *peak = malloc(chunk * sizeof *peak);
#pragma omp parallel num_threads(threads) if (rows * width * outs > 8 * SMALL)
    {
        float *scratch = malloc(width * sizeof *scratch);
        for (int64_t first = 0; first < rows; first += chunk) {
            int64_t count = rows - first < chunk ? rows - first : chunk;
#pragma omp for
            for (int64_t r = 0; r < count; r++) {
                const float *row = floats(input, is_bf16, (first + r) * width, width, scratch);
                peak[r] = quantize(codes + r * stride, row, width);
                memset(codes + r * stride + width, 0, stride - width);
            }
#pragma omp for
            for (int64_t p = 0; p < panels; p++) {
                int64_t o = p * PANEL, here = outs - o < PANEL ? outs - o : PANEL;
                multiply_panel(codes, stride, peak, count, weights + o * stride, scale + o, offset + o, bias + o,
                               p + 1 < panels, with_gelu, out, out_is_bf16, first * outs + o, outs, here);
            }
        }
        free(scratch);
    }
    free(codes);
    free(peak);
}

// What one head's queries are multiplied by, in the layout of multiply(), with room for whole `KEYS_AT_ONCE`.
struct head {
    int8_t *keys, *values;  // the inputs of values are positions
    float *key_scale, *key_bias, value_scale[WIDTH];
    int32_t *key_offset;
    float *scores;         // of TILE_ROWS queries, panel by panel
    uint8_t *high, *low;   // their weights' two halves, row by row
    int64_t count;         // keys, rounded up to whole KEYS_AT_ONCE
    float spoilt;          // 0, or NaN if a number of a key is not finite
};

// Rows of a fused product lie pages apart, where hardware does not fetch them in time.
INLINE void fetch_row(const void *numbers, int is_bf16, int64_t offset)
{
    const char *row = (const char *)numbers + offset * SIZES[is_bf16];
    for (int64_t i = 0; i < WIDTH * SIZES[is_bf16]; i += CACHE_LINE) _mm_prefetch(row + i, _MM_HINT_T0);
}

// Quantises the visible keys and values of a head, whose rows begin at offsets. The scale and mask of keys are such that
// 2^score, rather than e^score, is the weight.
static void pack_head(struct head *head, const void *keys, const void *values, int is_bf16, const int64_t *offsets,
                      const float *mask, int64_t count)
{
    const float log2_e = 1.44269504f;
    float rows[4][WIDTH], size[WIDTH] = {0};
    uint8_t codes[WIDTH];
    head->count = (count + KEYS_AT_ONCE - 1) / KEYS_AT_ONCE * KEYS_AT_ONCE;
    head->spoilt = 0;
    memset(head->keys, 0, head->count * WIDTH);
    memset(head->values, 0, head->count * WIDTH);
    for (int64_t j = 0; j < count; j++) {
        int8_t *panel = head->keys + j / PANEL * PANEL * WIDTH + j % PANEL * 4;
        if (j + LANES < count) fetch_row(keys, is_bf16, offsets[j + LANES]);
        float peak = quantize(codes, floats(keys, is_bf16, offsets[j], WIDTH, rows[0]), WIDTH);
        int32_t sum = 0;
        for (int d = 0; d < WIDTH; d++) {
            codes[d] ^= 0x80;  // less 128
            sum += (int8_t)codes[d];
        }
        for (int quad = 0; quad < WIDTH / 4; quad++) memcpy(panel + quad * 4 * PANEL, codes + 4 * quad, 4);
        head->key_scale[j] = peak * (log2_e / (127 * 127 * sqrtf(WIDTH)));
        head->key_offset[j] = 128 * sum;
        head->key_bias[j] = mask[j] * log2_e;
        head->spoilt += 0 * peak;
    }
    for (int64_t j = count; j < head->count; j++) {
        head->key_scale[j] = head->key_offset[j] = 0;
        head->key_bias[j] = -INFINITY;
    }
    for (int64_t j = 0; j < count; j++) {
        const float *value = floats(values, is_bf16, offsets[j], WIDTH, rows[0]);
        if (j + LANES < count) fetch_row(values, is_bf16, offsets[j + LANES]);
        for (int d = 0; d < WIDTH; d++) {
            float one = fabsf(value[d]);
            size[d] = one > size[d] || one != one ? one : size[d];  // NaN stays
        }
    }
    for (int d = 0; d < WIDTH; d++) {
        head->value_scale[d] = (size[d] + FLT_MIN) / 127;
        size[d] = size[d] > 1e-36f ? 1 / size[d] * 127 : 0;  // as quantize() does
    }
    for (int64_t j = 0; j < count; j += 4) {  // of which there are whole LANES
        for (int i = 0; i < 4; i++) load(rows[i], values, is_bf16 ? BF16 : FP32, offsets[j + i], WIDTH);
        for (int half = 0; half < WIDTH / PANEL; half++) {
            int32_t *quads = (int32_t *)(head->values + (half * head->count + j) * PANEL);
            for (int o = 0; o < PANEL; o++) {
                int d = half * PANEL + o;
                uint32_t quad = 0;
                for (int i = 0; i < 4; i++)
                    quad |= ((uint32_t)(int32_t)rintf(rows[i][d] * size[d]) & 0xff) << 8 * i;
                quads[o] = quad;
            }
        }
    }
}

// Weights 2^(score - the greatest one) of one query in units of 2^-16, almost, as codes of 16 bits: 8 would lose the
// many small ones. Returns their sum.
static uint32_t weigh_scores(const float *scores, int64_t count, uint8_t *high, uint8_t *low)
{
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    const __m512i byte = _mm512_set1_epi16(255);
    __m512 top = _mm512_set1_ps(-INFINITY);
    __m512i sum = _mm512_setzero_si512();
    for (int64_t j = 0; j < count; j += PANEL) {
        const float *from = scores + j * TILE_ROWS;
        top = _mm512_max_ps(top, _mm512_max_ps(_mm512_loadu_ps(from), _mm512_loadu_ps(from + LANES)));
    }
    top = _mm512_set1_ps(_mm512_reduce_max_ps(top));
    for (int64_t j = 0; j < count; j += KEYS_AT_ONCE) {
        __m512i codes[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            __m512 x = _mm512_loadu_ps(scores + (j + i / 2 * PANEL) * TILE_ROWS + i % 2 * LANES);
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
        // Packing puts quads of the four registers in turn, four times; the order undoes that.
        __m512i first = _mm512_packus_epi32(codes[0], codes[1]), last = _mm512_packus_epi32(codes[2], codes[3]);
        __m512i upper = _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(last, 8));
        __m512i lower = _mm512_packus_epi16(_mm512_and_si512(first, byte), _mm512_and_si512(last, byte));
        _mm512_storeu_si512(high + j, _mm512_permutexvar_epi32(order, upper));
        _mm512_storeu_si512(low + j, _mm512_permutexvar_epi32(order, lower));
    }
    return _mm512_reduce_add_epi32(sum);
}

// Contexts (TILE_ROWS, WIDTH) of the first of the `rest` queries that are left, which are query_row elements apart.
static void attend_tile(const struct head *head, const void *query, int is_bf16, int64_t from, int64_t query_row,
                        int64_t rest, float context[][WIDTH])
{
    static const int32_t no_offset[PANEL];
    static const float no_bias[PANEL];
    uint8_t codes[TILE_ROWS][WIDTH] = {{0}};
    float peak[TILE_ROWS] = {0}, high_unit[TILE_ROWS], low_unit[TILE_ROWS], scratch[WIDTH];
    float upper[TILE_ROWS][PANEL], lower[TILE_ROWS][PANEL];
    int64_t count = head->count, rows = rest < TILE_ROWS ? rest : TILE_ROWS;
    for (int64_t r = 0; r < rows; r++)
        peak[r] = quantize(codes[r], floats(query, is_bf16, from + r * query_row, WIDTH, scratch), WIDTH);
    for (int64_t r = 0; r < rest - rows && r < TILE_ROWS; r++)
        fetch_row(query, is_bf16, from + (TILE_ROWS + r) * query_row);
    for (int64_t j = 0; j < count; j += PANEL) {
        const int8_t *panel = head->keys + j * WIDTH;
        multiply_tile(TILE_ROWS, codes[0], WIDTH, peak, panel, head->key_scale + j, head->key_offset + j,
                      head->key_bias + j, panel, 0, (float(*)[PANEL])(head->scores + j * TILE_ROWS));
    }
    for (int r = 0; r < TILE_ROWS; r++) {
        uint32_t sum = weigh_scores(head->scores + r * PANEL, count, head->high + r * count, head->low + r * count);
        low_unit[r] = 1 / (float)sum + 0 * peak[r] + head->spoilt;  // what spoils scores spoils all of their row
        high_unit[r] = 256 * low_unit[r];
    }
    for (int d = 0; d < WIDTH; d += PANEL) {
        const int8_t *panel = head->values + d * count;
        multiply_tile(TILE_ROWS, head->high, count, high_unit, panel, head->value_scale + d, no_offset, no_bias, panel,
                      0, upper);
        multiply_tile(TILE_ROWS, head->low, count, low_unit, panel, head->value_scale + d, no_offset, no_bias, panel,
                      0, lower);
        for (int r = 0; r < TILE_ROWS; r++)
            for (int i = 0; i < PANEL; i++) context[r][d + i] = upper[r][i] + lower[r][i];
    }
}

// Like attend(), for as many queries as keys, which with the values are of one kind and lie at equal strides. All are
// quantised: queries and keys with one scale for each, values with one scale per dimension of a head. The mask has one
// row for all queries; the length is at most 2^16.
void attend_many(const void *query, const void *keys, const void *values, int is_bf16, int64_t article, int64_t head,
                    int64_t row, const void *mask, int mask_is_bf16, int64_t mask_article, void *context,
                    int64_t articles, int64_t heads, int64_t length, int threads)
{
    int64_t room = (length + KEYS_AT_ONCE - 1) / KEYS_AT_ONCE * KEYS_AT_ONCE;
    int64_t *counts = malloc(articles * sizeof *counts);
    int64_t *offsets = malloc(articles * room * sizeof *offsets);
    float *additive = malloc(articles * room * sizeof *additive);
    for (int64_t b = 0; b < articles; b++)
        counts[b] = list_visible(mask, mask_is_bf16, b * mask_article, 0, 1, length, row, offsets + b * room,
                                 additive + b * room, room);
#pragma omp parallel num_threads(threads) if (articles * heads * length * length > SMALL)
    {
        struct head packed;
        float contexts[TILE_ROWS][WIDTH];
        char *store_of_head = aligned_alloc(CACHE_LINE, room * (2 * WIDTH + 12 + TILE_ROWS * 6));
        packed.scores = (float *)store_of_head;
        packed.key_scale = packed.scores + TILE_ROWS * room;
        packed.key_bias = packed.key_scale + room;
        packed.key_offset = (int32_t *)(packed.key_bias + room);
        packed.keys = (int8_t *)(packed.key_offset + room);
        packed.values = packed.keys + WIDTH * room;
        packed.high = (uint8_t *)(packed.values + WIDTH * room);
        packed.low = packed.high + TILE_ROWS * room;
#pragma omp for schedule(dynamic) nowait
        for (int64_t item = 0; item < articles * heads; item++) {
            int64_t b = item / heads, h = item % heads, from = b * article + h * head;
            int64_t skipped = from * SIZES[is_bf16];
            pack_head(&packed, (const char *)keys + skipped, (const char *)values + skipped, is_bf16, offsets + b * room,
                      additive + b * room, counts[b]);
            for (int64_t k = 0; k < length; k += TILE_ROWS) {
                int64_t rows = length - k < TILE_ROWS ? length - k : TILE_ROWS;
                attend_tile(&packed, query, is_bf16, from + k * row, row, length - k, contexts);
                for (int64_t r = 0; r < rows; r++)
                    store(context, is_bf16, ((b * length + k + r) * heads + h) * WIDTH, contexts[r], WIDTH);
            }
        }
        free(store_of_head);
    }
    free(counts);
    free(offsets);
    free(additive);
}
#endif
