// Attention over paged KV memory: normalises and rotates queries and keys, writes keys and values to their slots,
// and attends in place over the blocks, prompt chunks and single tokens alike.
//
// Cache of one layer: keys [blocks][kv heads][head size][block], values [blocks][kv heads][block][head size]. With
// keys transposed, a vector holds as many tokens, and a score needs no horizontal sum.

#pragma once

#include "pool.h"

namespace headrace {

enum class CacheFormat : int { kFloat32 = 0, kBf16 = 1 };

// One step, as attention/contract.py's RaggedBatch describes it; mirrored in native/declarations.py.
struct Step {
  const int64_t* slots;          // [tokens]; below 0: padding, nothing is stored
  const int32_t* query_start;    // [sequences + 1]
  const int32_t* context_lens;   // [sequences]
  const int32_t* block_tables;   // [sequences][table_stride]
  const int64_t* positions;      // [tokens]
  int32_t tokens, sequences, table_stride;
};

// What is the same in all steps of a layer. `cosines`, `sines` [positions][rotated / 2].
struct AttentionLayer {
  void *keys, *values;
  const float *query_norm, *key_norm;  // [head size], or null
  const float *cosines, *sines;
  int32_t heads, kv_heads, head_size, rotated, block, window;  // window: tokens seen; 0: all
  int32_t cache_format;
  float scale, soft_cap, eps;  // soft_cap 0: none
};

// qkv [tokens][heads + 2 * kv_heads][head size] is changed in place; out [tokens][heads][head size].
void attend(Pool& pool, const AttentionLayer& layer, const Step& step, float* qkv, float* out);

}  // namespace headrace
