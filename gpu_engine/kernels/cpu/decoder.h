// A whole decoder in one call: what stands between the embeddings and the logits of a step.

#pragma once

#include "attention.h"
#include "experts.h"
#include "linear.h"

namespace headrace {

// One layer, with an MLP or experts; norms are weights [hidden], or null where the model has none at that place.
struct Layer {
  AttentionLayer attention;
  Linear qkv, output, gate_up, down;
  const float *attention_norm, *post_attention_norm, *mlp_norm, *post_mlp_norm;
  int32_t gate;  // an `Into`
  Experts experts;
};

struct Decoder {
  const Layer* layers;
  const float* norm;
  Linear head;
  int32_t num_layers, hidden;
  float eps;
};

// x [tokens][hidden]: embeddings; becomes the hidden states after the last norm. `loras`: the rows that have an
// adapter; null: none has.
void forward(Pool& pool, const Decoder& decoder, const Step& step, const LoraRows* loras, float* x);

// Scores of the next token, out [rows][vocabulary], for rows [rows][hidden] of what `forward` made.
void logits(Pool& pool, const Decoder& decoder, const float* rows, int count, float* out);

}  // namespace headrace
