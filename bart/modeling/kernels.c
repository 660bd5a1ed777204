// Kernels of inference on CPUs: attention over bf16 keys and values, and what stands between two int8 products.
//
// Shapes: B articles, H heads, K queries of an article (its beams, or positions), L keys, Dh the head width; N rows.
// Plain C, whose inner loops the compiler vectorises. Attention with heads of 64, which is what all published BART
// models have, is also written for AVX512_BF16; -DBART_PLAIN leaves that out.
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && !defined(BART_PLAIN)
#include <immintrin.h>
#define BF16_DOT
#endif
#define INLINE static inline __attribute__((always_inline))

typedef uint16_t bf16;

enum {
    LANES = 16,     // numbers that are handled at once
    QUERIES = 16,   // queries for which a head's keys and values are read once
    AT_ONCE = 6,    // of them, those whose contexts are summed in registers together
    WIDTH = 64,     // head width of the variant for AVX512_BF16
    SMALL = 32000,  // numbers below which one thread is about as fast as two
};
static const bf16 HIDDEN = 0xff80;  // -inf

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

INLINE void load(float *to, const void *from, int is_bf16, int64_t offset, int64_t count)
{
    if (is_bf16)
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
    load(scratch, numbers, 1, offset, count);
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
static int64_t list_visible(const bf16 *mask, int64_t mask_row, int64_t rows, int64_t length, int64_t key_row,
                            int64_t *offsets, float *additive, int64_t room)
{
    int64_t count = 0;
    uint8_t *seen = malloc(length);
    memset(seen, mask == NULL, length);
    for (int64_t row = 0; mask != NULL && row < rows; row++)
        for (int64_t l = 0; l < length; l++) seen[l] |= mask[row * mask_row + l] != HIDDEN;
    for (int64_t l = 0; l < length; l++) {
        offsets[count] = l;
        count += seen[l];
    }
    free(seen);
    int64_t padded = (count + LANES - 1) / LANES * LANES;
    for (int64_t j = count; j < padded; j++) offsets[j] = offsets[count - 1];
    for (int64_t row = 0; row < rows; row++)
        for (int64_t j = 0; j < padded; j++) {
            float of_mask = mask == NULL ? 0 : widen(mask[row * mask_row + offsets[j]]);
            additive[row * room + j] = j < count ? of_mask : -INFINITY;
        }
    for (int64_t j = 0; j < padded; j++) offsets[j] *= key_row;
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

// scores[k][j] = query[k] . the key at offsets[j]
INLINE void score(const float *query, int64_t queries, const bf16 *keys, const int64_t *offsets, int64_t count,
                  int64_t width, float *scores)
{
    float key[width];
    for (int64_t j = 0; j < count; j++) {
        load(key, keys, 1, offsets[j], width);
        for (int64_t k = 0; k < queries; k++) scores[k * count + j] = dot(query + k * width, key, width);
    }
}

// context[k] = sum over j of weights[k][j] * the value at offsets[j]
INLINE void weigh(const float *weights, int64_t queries, const bf16 *values, const int64_t *offsets, int64_t count,
                  int64_t width, float *context)
{
    float value[4][width];
    memset(context, 0, queries * width * sizeof *context);
    for (int64_t j = 0; j < count; j += 4) {
        for (int i = 0; i < 4; i++) load(value[i], values, 1, offsets[j + i], width);
        for (int64_t k = 0; k < queries; k++) {
            const float *w = weights + k * count + j;
            float *sums = context + k * width;
#pragma omp simd
            for (int64_t d = 0; d < width; d++)
                sums[d] += w[0] * value[0][d] + w[1] * value[1][d] + w[2] * value[2][d] + w[3] * value[3][d];
        }
    }
}

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
            __m512 *sum = sums[four];
            __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(sum[0], sum[1]), _mm512_unpackhi_ps(sum[0], sum[1]));
            __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(sum[2], sum[3]), _mm512_unpackhi_ps(sum[2], sum[3]));
            __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
            __m512 total = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)),
                                         _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
            float *to = scores + 4 * four * count + j;
            _mm_storeu_ps(to, _mm512_extractf32x4_ps(total, 0));
            _mm_storeu_ps(to + count, _mm512_extractf32x4_ps(total, 1));
            _mm_storeu_ps(to + 2 * count, _mm512_extractf32x4_ps(total, 2));
            _mm_storeu_ps(to + 3 * count, _mm512_extractf32x4_ps(total, 3));
        }
    }
}

static void score_64(const float *query, int64_t queries, const bf16 *keys, const int64_t *offsets, int64_t count,
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
INLINE void weigh_some(int queries, const bf16 *weights, const bf16 *values, const int64_t *offsets, int64_t count,
                       float *context)
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

static void weigh_64(float *weights, int64_t queries, const bf16 *values, const int64_t *offsets, int64_t count,
                     float *context)
{
    bf16 *narrowed = (bf16 *)weights;  // in the same place: each number is read before its place is written
    for (int64_t i = 0; i < queries * count; i += LANES)
        _mm256_storeu_si256((__m256i *)(narrowed + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(weights + i)));
    for (int64_t k = 0; k < queries; k += AT_ONCE) {
        const bf16 *from = narrowed + k * count;
        float *to = context + k * WIDTH;
        switch (queries - k) {  // constants, so that the sums stay in registers
        case 1: weigh_some(1, from, values, offsets, count, to); break;
        case 2: weigh_some(2, from, values, offsets, count, to); break;
        case 3: weigh_some(3, from, values, offsets, count, to); break;
        case 4: weigh_some(4, from, values, offsets, count, to); break;
        case 5: weigh_some(5, from, values, offsets, count, to); break;
        default: weigh_some(AT_ONCE, from, values, offsets, count, to);
        }
    }
}
#else  // a constant width makes shorter loops
#define score_64(query, n, keys, offsets, count, scores) score(query, n, keys, offsets, count, WIDTH, scores)
#define weigh_64(weights, n, values, offsets, count, sums) weigh(weights, n, values, offsets, count, WIDTH, sums)
#endif

// context (B, K, H * Dh) = softmax(query keys^T / sqrt(Dh) + mask) values; strides count elements. The mask is NULL if
// all may be read, and has one row for all queries if mask_rows is 1; no query may find all columns hidden.
void attend(const void *query, int query_is_bf16, int64_t query_article, int64_t query_head, int64_t query_row,
            const bf16 *keys, const bf16 *values, int64_t key_article, int64_t key_head, int64_t key_row,
            const bf16 *mask, int64_t mask_article, int64_t mask_row, int64_t mask_rows,
            void *context, int64_t articles, int64_t heads, int64_t queries, int64_t length, int64_t width, int threads)
{
    int64_t room = (length + LANES - 1) / LANES * LANES;
    int64_t group = queries < QUERIES ? queries : QUERIES, groups = (queries + group - 1) / group;
    int small = articles * heads * queries * length * width < 4 * SMALL;
    int64_t *counts = malloc(articles * sizeof *counts);
    int64_t *offsets = malloc(articles * room * sizeof *offsets);
    float *additive = malloc(articles * mask_rows * room * sizeof *additive);
    for (int64_t b = 0; b < articles; b++)
        counts[b] = list_visible(mask == NULL ? NULL : mask + b * mask_article, mask_row, mask_rows, length, key_row,
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
            const bf16 *key = keys + b * key_article + h * key_head, *value = values + (key - keys);
            const int64_t *list = offsets + b * room;
            for (int64_t k = 0; k < here; k++)
                load(rows + k * width, query, query_is_bf16, from + k * query_row, width);
            if (width == WIDTH) score_64(rows, here, key, list, count, scores);
            else score(rows, here, key, list, count, width, scores);
            for (int64_t k = 0; k < here; k++) {
                const float *mask_of_row = additive + (b * mask_rows + (mask_rows == 1 ? 0 : k0 + k)) * room;
                divisors[k] = exponentials(scores + k * count, mask_of_row, 1 / sqrtf(width), count);
            }
            if (width == WIDTH) weigh_64(scores, here, value, list, count, sums);
            else weigh(scores, here, value, list, count, width, sums);
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
                if (bias == NULL)
                    for (int64_t i = 0; i < width; i++) to[i] = row[i] * scale;
                else
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
