// AMX's tiles in plain C, so that the kernels' code for them runs on processors that lack them (Intel's Software
// Developer's Manual, volume 2: LDTILECFG, TILELOADD, TDPBUSD, TILESTORED, TILERELEASE).
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local struct { uint8_t palette, unused[15]; uint16_t row_bytes[16]; uint8_t rows[16]; } tile_shapes;
static _Thread_local uint8_t tiles[8][16][64];

static inline void emulated_config(const void *shapes)
{
    memcpy(&tile_shapes, shapes, sizeof tile_shapes);
    memset(tiles, 0, sizeof tiles);
}

static inline void emulated_release(void) { memset(&tile_shapes, 0, sizeof tile_shapes); }

static inline int emulated_rows(int tile)
{
    if (tile_shapes.palette != 1) abort();  // a processor raises #UD
    return tile_shapes.rows[tile];
}

static inline void emulated_load(int tile, const void *from, long stride)
{
    memset(tiles[tile], 0, sizeof tiles[tile]);
    for (int r = 0; r < emulated_rows(tile); r++)
        memcpy(tiles[tile][r], (const char *)from + r * stride, tile_shapes.row_bytes[tile]);
}

static inline void emulated_store(int tile, void *to, long stride)
{
    for (int r = 0; r < emulated_rows(tile); r++)
        memcpy((char *)to + r * stride, tiles[tile][r], tile_shapes.row_bytes[tile]);
}

static inline void emulated_dot(int sums, int codes, int weights)
{
    if (tile_shapes.row_bytes[codes] != 4 * emulated_rows(weights)) abort();
    for (int r = 0; r < emulated_rows(sums); r++)
        for (int o = 0; o < tile_shapes.row_bytes[sums] / 4; o++) {
            int32_t sum;
            memcpy(&sum, tiles[sums][r] + 4 * o, 4);
            for (int k = 0; k < emulated_rows(weights); k++)
                for (int i = 0; i < 4; i++)
                    sum += (int32_t)tiles[codes][r][4 * k + i] * (int8_t)tiles[weights][k][4 * o + i];
            memcpy(tiles[sums][r] + 4 * o, &sum, 4);
        }
}

#undef __AMX_INT8__
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbusd
#define __AMX_INT8__ 1
#define _tile_loadconfig emulated_config
#define _tile_release emulated_release
#define _tile_loadd emulated_load
#define _tile_stored emulated_store
#define _tile_dpbusd emulated_dot
#define syscall(...) 0
