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
    LANES = 16,     // columns that are handled at once
    QUERIES = 16,   // queries for which a head's keys and values are read once
    AT_ONCE = 6,    // of them, how many have their sums in registers
    WIDTH = 64,     // head width of the variant for AVX512_BF16
    SMALL = 20000,  // numbers below which a second thread costs more than it saves
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

static void load(float *to, const void *from, int is_bf16, int64_t offset, int64_t count)
{
    const float *numbers = (const float *)from + offset;
    if (is_bf16)
        for (int64_t i = 0; i < count; i++) to[i] = widen(((const bf16 *)from)[offset + i]);
    else if (to != numbers)
        memcpy(to, numbers, count * sizeof *to);
}

static void store(void *to, int is_bf16, int64_t offset, const float *from, int64_t count)
{
    if (is_bf16)
        for (int64_t i = 0; i < count; i++) ((bf16 *)to)[offset + i] = narrow(from[i]);
    else
        memcpy((float *)to + offset, from, count * sizeof *from);
}

// e^x for x <= 0, to 2e-7 of it; 0 below -88. With n ln 2 taken off, |x| <= 0.35, which a Taylor series covers.
INLINE float exponential(float x)
{
    const float least = -127 * 0.69314718f;
    x = x < least ? least : x;  // NaN stays NaN
    float n = rintf(x * 1.44269504f);
    x = fmaf(n, 1.42860677e-6f, fmaf(n, -0.693148613f, x));  // ln 2 in two parts
    float series = 1 + x * (1 + x * (1 / 2.f + x * (1 / 6.f + x * (1 / 24.f + x * (1 / 120.f + x * (1 / 720.f))))));
    union { uint32_t bits; float value; } power = {(uint32_t)((int32_t)n + 127) << 23};
    return series * power.value;
}

// x times the normal distribution's share below x. Abramowitz & Stegun 7.1.26: erfc(z) = t (a1 + ... + a5 t^4) e^(-z^2)
// with t = 1 / (1 + 0.3275911 z), to 1.5e-7, for z = |x| / sqrt(2).
INLINE float gelu(float x)
{
    float size = fabsf(x);
    float t = 1 / (1 + 0.3275911f * 0.70710678f * size);
    float series = 0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f)));
    float outside = t * series * exponential(-0.5f * x * x);
    return (x > 0 ? x : 0) - 0.5f * size * outside;
}

// ---------------------------------------------------------------------------------------------------- attention

// The columns of an article that any of its queries may read, and their mask. They are padded to whole LANES with
// copies of the last one that are hidden.
static int64_t list_visible(const bf16 *mask, int64_t row_stride, int64_t rows, int64_t length, int32_t *columns,
                            float *additive, int64_t room)
{
    int64_t count = 0;
    uint8_t *seen = malloc(length);
    memset(seen, mask == NULL, length);
    for (int64_t row = 0; mask != NULL && row < rows; row++)
        for (int64_t l = 0; l < length; l++) seen[l] |= mask[row * row_stride + l] != HIDDEN;
    for (int64_t l = 0; l < length; l++) {
        columns[count] = l;
        count += seen[l];
    }
    free(seen);
    int64_t padded = (count + LANES - 1) / LANES * LANES;
    for (int64_t j = count; j < padded; j++) columns[j] = columns[count - 1];
    for (int64_t row = 0; row < rows; row++)
        for (int64_t j = 0; j < padded; j++) {
            float of_mask = mask == NULL ? 0 : widen(mask[row * row_stride + columns[j]]);
            additive[row * room + j] = j < count ? of_mask : -INFINITY;
        }
    return padded;
}

// scores -> e^(scale * score + mask - the greatest of these); returns what to divide them by.
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

// scores[k][j] = query[k] . keys[columns[j]]
static void score(const float *query, int64_t queries, const bf16 *keys, int64_t stride, const int32_t *columns,
                  int64_t count, int64_t width, float *scores)
{
    float key[width];
    for (int64_t j = 0; j < count; j++) {
        for (int64_t d = 0; d < width; d++) key[d] = widen(keys[columns[j] * stride + d]);
        for (int64_t k = 0; k < queries; k++) {
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t d = 0; d < width; d++) sum += query[k * width + d] * key[d];
            scores[k * count + j] = sum;
        }
    }
}

// context[k] = sum over j of weights[k][j] * values[columns[j]]
static void weigh(const float *weights, int64_t queries, const bf16 *values, int64_t stride, const int32_t *columns,
                  int64_t count, int64_t width, float *context)
{
    float value[width];
    memset(context, 0, queries * width * sizeof *context);
    for (int64_t j = 0; j < count; j++) {
        for (int64_t d = 0; d < width; d++) value[d] = widen(values[columns[j] * stride + d]);
        for (int64_t k = 0; k < queries; k++) {
            float weight = weights[k * count + j];
#pragma omp simd
            for (int64_t d = 0; d < width; d++) context[k * width + d] += weight * value[d];
        }
    }
}

#ifdef BF16_DOT
// Calls a function with a constant count of queries, so that its sums stay in registers.
#define WITH_COUNT(n, call)                                                                                           \
    switch (n) {                                                                                                      \
    case 1: call(1); break;                                                                                           \
    case 2: call(2); break;                                                                                           \
    case 3: call(3); break;                                                                                           \
    case 4: call(4); break;                                                                                           \
    case 5: call(5); break;                                                                                           \
    default: call(AT_ONCE); break;                                                                                    \
    }

// A 16 x 16 matrix of 32-bit words, turned.
INLINE void transpose(const __m512i rows[16], __m512i turned[16])
{
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int c = 0; c < 2; c++) {
            b[i + 2 * c] = _mm512_unpacklo_epi64(a[i + c], a[i + 2 + c]);
            b[i + 2 * c + 1] = _mm512_unpackhi_epi64(a[i + c], a[i + 2 + c]);
        }
    // b[4 i + c] holds, of rows 4 i to 4 i + 3, the words c, 4 + c, 8 + c and 12 + c.
    for (int c = 0; c < 4; c++) {
        __m512i even_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88);
        __m512i even_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
        __m512i odd_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
        __m512i odd_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
        turned[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
        turned[4 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
        turned[8 + c] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
        turned[12 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
    }
}

INLINE __m512 dot(__m512 sum, __m512i pairs, const uint32_t *pair)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)pairs, (__m512bh)_mm512_set1_epi32(*pair));
}

// Scores of `queries` queries with 16 keys; both come in pairs of numbers.
INLINE void score_block(int queries, const uint32_t (*query)[WIDTH / 2], const __m512i *keys, float *scores,
                        int64_t count)
{
    __m512 sums[AT_ONCE][2];
    for (int k = 0; k < queries; k++) sums[k][0] = sums[k][1] = _mm512_setzero_ps();
    for (int pair = 0; pair < WIDTH / 2; pair += 2)
        for (int k = 0; k < queries; k++) {
            sums[k][0] = dot(sums[k][0], keys[pair], &query[k][pair]);
            sums[k][1] = dot(sums[k][1], keys[pair + 1], &query[k][pair + 1]);
        }
    for (int k = 0; k < queries; k++) _mm512_storeu_ps(scores + k * count, _mm512_add_ps(sums[k][0], sums[k][1]));
}

static void score_64(const float *query, int64_t queries, const bf16 *keys, int64_t stride, const int32_t *columns,
                     int64_t count, float *scores)
{
    uint32_t pairs[QUERIES][WIDTH / 2];
    for (int64_t i = 0; i < queries * WIDTH; i += LANES)
        _mm256_storeu_si256((__m256i *)((bf16 *)pairs + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(query + i)));
    for (int64_t j = 0; j < count; j += LANES) {
        __m512i rows[16], turned[32];
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < 16; i++) rows[i] = _mm512_loadu_si512(keys + columns[j + i] * stride + 32 * half);
            transpose(rows, turned + 16 * half);
        }
        for (int64_t k = 0; k < queries; k += AT_ONCE) {
#define CALL(n) score_block(n, (const uint32_t(*)[WIDTH / 2])pairs + k, turned, scores + k * count + j, count)
            WITH_COUNT(queries - k, CALL)
#undef CALL
        }
    }
}

// Contexts of `queries` queries; weights are bf16, two columns at a time.
INLINE void weigh_block(int queries, const bf16 *weights, const bf16 *values, int64_t stride, const int32_t *columns,
                        int64_t count, float *context)
{
    const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    __m512 sums[AT_ONCE][4];
    for (int k = 0; k < queries; k++)
        for (int i = 0; i < 4; i++) sums[k][i] = _mm512_setzero_ps();
    for (int64_t j = 0; j < count; j += 2) {
        const bf16 *one = values + columns[j] * stride, *two = values + columns[j + 1] * stride;
        __m512i pairs[4];
        for (int half = 0; half < 2; half++) {
            __m512i a = _mm512_loadu_si512(one + 32 * half), b = _mm512_loadu_si512(two + 32 * half);
            pairs[2 * half] = _mm512_unpacklo_epi16(a, b);
            pairs[2 * half + 1] = _mm512_unpackhi_epi16(a, b);
        }
        for (int k = 0; k < queries; k++)
            for (int i = 0; i < 4; i++)
                sums[k][i] = dot(sums[k][i], pairs[i], (const uint32_t *)(weights + k * count + j));
    }
    for (int k = 0; k < queries; k++)
        for (int half = 0; half < 2; half++) {  // unpacking has put every other four dimensions into one register
            __m512 low = sums[k][2 * half], high = sums[k][2 * half + 1];
            _mm512_storeu_ps(context + k * WIDTH + 32 * half, _mm512_permutex2var_ps(low, first, high));
            _mm512_storeu_ps(context + k * WIDTH + 32 * half + 16, _mm512_permutex2var_ps(low, last, high));
        }
}

static void weigh_64(const float *weights, int64_t queries, const bf16 *values, int64_t stride, const int32_t *columns,
                     int64_t count, float *context)
{
    bf16 *narrowed = (bf16 *)weights;  // in the same place: a number is read before its place is written
    for (int64_t i = 0; i < queries * count; i += LANES)
        _mm256_storeu_si256((__m256i *)(narrowed + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(weights + i)));
    for (int64_t k = 0; k < queries; k += AT_ONCE) {
#define CALL(n) weigh_block(n, narrowed + k * count, values, stride, columns, count, context + k * WIDTH)
        WITH_COUNT(queries - k, CALL)
#undef CALL
    }
}
#endif

// context (B, K, H * Dh) = softmax(query keys^T / sqrt(Dh) + mask) values; strides count elements. The mask is additive,
// one row for all queries if mask_rows is 1, and NULL where all may be read; no query may find all columns hidden.
void attend(const void *query, int query_is_bf16, int64_t query_article, int64_t query_head, int64_t query_row,
            const bf16 *keys, const bf16 *values, int64_t key_article, int64_t key_head, int64_t key_row,
            const bf16 *mask, int64_t mask_article, int64_t mask_row, int64_t mask_rows,
            void *context, int64_t articles, int64_t heads, int64_t queries, int64_t length, int64_t width, int threads)
{
    int64_t room = (length + LANES - 1) / LANES * LANES;
    int64_t group = queries < QUERIES ? queries : QUERIES, groups = (queries + group - 1) / group;
    int64_t small = articles * heads * queries * length * width < 16 * SMALL;
    int64_t *counts = malloc(articles * sizeof *counts);
    int32_t *columns = malloc(articles * room * sizeof *columns);
    float *additive = malloc(articles * mask_rows * room * sizeof *additive);
#pragma omp parallel num_threads(threads) if (!small)
    {
        float *scores = malloc(group * (room + 2 * width) * sizeof *scores);
        float *rows = scores + group * room, *sums = rows + group * width, divisors[QUERIES];
#pragma omp for
        for (int64_t b = 0; b < articles; b++)
            counts[b] = list_visible(mask == NULL ? NULL : mask + b * mask_article, mask_row, mask_rows, length,
                                     columns + b * room, additive + b * mask_rows * room, room);
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < articles * heads * groups; item++) {
            int64_t b = item / groups / heads, h = item / groups % heads, k0 = item % groups * group;
            int64_t here = queries - k0 < group ? queries - k0 : group;
            int64_t from = b * query_article + h * query_head + k0 * query_row, of_keys = b * key_article + h * key_head;
            const bf16 *key = keys + of_keys, *value = values + of_keys;
            const int32_t *list = columns + b * room;
            for (int64_t k = 0; k < here; k++)
                load(rows + k * width, query, query_is_bf16, from + k * query_row, width);
#ifdef BF16_DOT
            if (width == WIDTH) score_64(rows, here, key, key_row, list, counts[b], scores);
            else
#endif
                score(rows, here, key, key_row, list, counts[b], width, scores);
            for (int64_t k = 0; k < here; k++) {
                int64_t row = mask_rows == 1 ? 0 : k0 + k;
                divisors[k] = exponentials(scores + k * counts[b], additive + (b * mask_rows + row) * room,
                                           1 / sqrtf(width), counts[b]);
            }
#ifdef BF16_DOT
            if (width == WIDTH) weigh_64(scores, here, value, key_row, list, counts[b], sums);
            else
#endif
                weigh(scores, here, value, key_row, list, counts[b], width, sums);
            for (int64_t k = 0; k < here; k++) {
                for (int64_t d = 0; d < width; d++) sums[k * width + d] /= divisors[k];
                store(context, query_is_bf16, ((b * queries + k0 + k) * heads + h) * width, sums + k * width, width);
            }
        }
        free(scores);
    }
    free(counts);
    free(columns);
    free(additive);
}

// --------------------------------------------------------------------------------------------------------- rows

// row += hidden, then layer normalisation.
static void add_and_norm(float *row, const void *hidden, int64_t from, const void *weight, const void *bias,
                         int is_bf16, float eps, float *scratch, int64_t width)
{
    float mean = 0, square = 0;
    load(scratch, hidden, is_bf16, from, width);
#pragma omp simd reduction(+ : mean)
    for (int64_t i = 0; i < width; i++) mean += row[i] += scratch[i];
    mean /= width;
#pragma omp simd reduction(+ : square)
    for (int64_t i = 0; i < width; i++) square += (row[i] - mean) * (row[i] - mean);
    float scale = 1 / sqrtf(square / width + eps);
    load(scratch, weight, is_bf16, 0, width);
    for (int64_t i = 0; i < width; i++) row[i] = (row[i] - mean) * scale * scratch[i];
    load(scratch, bias, is_bf16, 0, width);
    for (int64_t i = 0; i < width; i++) row[i] += scratch[i];
}

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
    float scale = peak.value > 1e-36f ? 127 / peak.value : 0;  // which would else be infinite
    for (int64_t i = 0; i < width; i++) codes[i] = 128 + (int32_t)rintf(row[i] * scale);
    return peak.value;
}

// What follows a matrix product, row by row; each step is left out where its argument is NULL:
//   row = bias + input * peak; row = gelu(row); row = layer_norm(hidden + row) weight + norm_bias;
//   out = row; codes, code_peak = quantize(row).
// is_bf16 holds for input, hidden, weight and norm_bias, out_is_bf16 for out, which may be the place of input.
void finish_rows(const void *input, int is_bf16, const float *peak, const float *bias, int with_gelu,
                 const void *hidden, const void *weight, const void *norm_bias, float eps, void *out, int out_is_bf16,
                 uint8_t *codes, float *code_peak, int64_t rows, int64_t width, int threads)
{
    int64_t small = rows * width * (with_gelu ? 4 : 1) < SMALL;
#pragma omp parallel num_threads(threads) if (rows > 1 && !small)
    {
        float *scratch = malloc(2 * width * sizeof *scratch);
#pragma omp for
        for (int64_t r = 0; r < rows; r++) {
            float *row = out != NULL && !out_is_bf16 ? (float *)out + r * width : scratch + width;
            load(row, input, is_bf16, r * width, width);
            if (peak != NULL) {
                float scale = peak[r];
                for (int64_t i = 0; i < width; i++) row[i] *= scale;
            }
            if (bias != NULL)
                for (int64_t i = 0; i < width; i++) row[i] += bias[i];
            if (with_gelu)
                for (int64_t i = 0; i < width; i++) row[i] = gelu(row[i]);
            if (hidden != NULL) add_and_norm(row, hidden, r * width, weight, norm_bias, is_bf16, eps, scratch, width);
            if (out_is_bf16) store(out, 1, r * width, row, width);
            if (codes != NULL) code_peak[r] = quantize(codes + r * width, row, width);
        }
        free(scratch);
    }
}
