// Low-rank adapters beside linear layers (LoRA, Hu et al. 2021), many in one batch: y += B A x, each row of a step
// by its own adapter, or by none.
//
//   before the product   h = A x of the rows that have an adapter, several rows of one adapter at a time
//   as a tile ends       each of its rows gets B h for the tile's columns: B lies by columns, as the weights do
//
// Nothing of the size of the outputs is written besides, and gates see the sum. The order in which a row is summed
// depends on its adapter alone, so that its result is the same, bit for bit, in any company.

#pragma once

#include "pool.h"
#include "simd.h"

namespace headrace {

// One pair A, B. Its columns are whole vectors of the packed ones (see `formats.h`): `first`, `first + stride`, …
// The stride is 1, or 2 in a gated layer, which has vectors of gates and of ups in turn. Mirrored in
// native/declarations.py, as are the others but `Shrunk`.
struct LoraPart {
  const float* b;              // [count][ranks][kLanes], times the adapter's scale
  int32_t first_rank, ranks;   // its rows of A among those of the layer's parts
  int32_t first, stride, count;
};

// What one adapter adds to one layer: `a` [ranks / kLanes][inputs][kLanes], the rows of all parts, padded with
// zeros; null where it adds nothing.
struct LoraLayer {
  const float* a;
  const LoraPart* parts;
  int32_t ranks, num_parts;
};

// What all adapters add in one layer of the decoder, [adapters] each.
struct DecoderLoras {
  const LoraLayer *qkv, *output, *gate_up, *down;
};

// The rows of a step that have an adapter: `order` [count], sorted by it. `of_row` [tokens]: its number, or -1.
struct LoraRows {
  const DecoderLoras* layers;
  const int32_t *of_row, *order;
  int32_t count;
};

// A x of a step's rows, and who they belong to.
struct Shrunk {
  const LoraLayer* adapters;
  const int32_t* of_row;
  const float* h;  // [tokens][stride]
  int32_t stride;

  // Adds what a row's adapter has for a block of packed columns to its two vectors of sums.
  void expand(int row, int block, Vec& left, Vec& right) const;
};

// `x` [tokens][inputs] and `norm` are those of the product, for which the result is good until the next call.
Shrunk shrink(Pool& pool, const LoraRows& rows, const LoraLayer* adapters, int inputs, const float* x, const float* norm, float eps);

}  // namespace headrace
