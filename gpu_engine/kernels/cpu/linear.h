// Linear layers: y = x W^T + b, with what stands around them in a decoder done in the same pass.

#pragma once

#include <vector>

#include "formats.h"
#include "lora.h"
#include "pool.h"

namespace headrace {

// What becomes of a product.
enum class Into : int {
  kStore = 0,
  kAdd = 1,       // onto what stands in the output: a residual
  kGatedSilu = 2,  // silu(gate) * up: the block's left columns are gates, its right ones their ups
  kGatedGelu = 3,  // gelu(gate) * up, by tanh
};

// A packed weight matrix; mirrored in native/declarations.py. `scales`: of each column, for
// Int8 and Int4 of each chunk and column; none for floats. `bias` may be null.
struct Linear {
  const char* weights;
  const float* scales;
  const float* bias;
  int32_t inputs, outputs;
  int32_t format;
};

// x [rows][inputs] → out [rows][outputs], or half as many columns where gated. `norm`, if not null, is the weight
// of an RMS normalisation of each row of x before the product. Each row's result depends on this row alone, bit
// for bit, not on the others or their number. `lora`: what adapters add to the products, or null.
void linear(Pool& pool, const Linear& layer, const float* x, int rows, const float* norm, float eps, Into into, float* out,
            const Shrunk* lora = nullptr);

// Of one of several matrices of the same shape and format: the rows [first, first + rows) are its own.
struct Share {
  const Linear* layer;
  int32_t first, rows;
};

// As `linear`, for rows that different matrices multiply. Row r of the inputs is x[sources[r]], or x[r] where
// `sources` is null.
void linear(Pool& pool, const std::vector<Share>& shares, const float* x, const int32_t* sources, const float* norm,
            float eps, Into into, float* out);

// Bytes of a packed matrix, and floats of its scales.
int64_t packed_bytes(Format format, int outputs, int inputs);
int64_t num_scales(Format format, int outputs, int inputs);

// Packs W [outputs][inputs]. `gated`: its upper half are gates, its lower one ups; they are laid side by side.
void pack(Pool& pool, Format format, const float* weights, int outputs, int inputs, bool gated, char* packed, float* scales);

}  // namespace headrace
