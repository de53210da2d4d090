// The C interface that native/library.py loads.

#include "decoder.h"

using namespace headrace;

extern "C" {

Pool* headrace_pool(int threads, int pin) { return new Pool(threads, pin != 0); }
void headrace_free_pool(Pool* pool) { delete pool; }

int headrace_lanes() { return kLanes; }
int headrace_columns() { return kColumns; }
int64_t headrace_packed_bytes(int format, int outputs, int inputs) { return packed_bytes(static_cast<Format>(format), outputs, inputs); }
int64_t headrace_num_scales(int format, int outputs, int inputs) { return num_scales(static_cast<Format>(format), outputs, inputs); }

void headrace_pack(Pool* pool, int format, const float* weights, int outputs, int inputs, int gated, char* packed, float* scales) {
  pack(*pool, static_cast<Format>(format), weights, outputs, inputs, gated != 0, packed, scales);
}

void headrace_linear(Pool* pool, const Linear* layer, const float* x, int rows, const float* norm, float eps, int into, float* out) {
  linear(*pool, *layer, x, rows, norm, eps, static_cast<Into>(into), out);
}

void headrace_attend(Pool* pool, const AttentionLayer* layer, const Step* step, float* qkv, float* out) {
  attend(*pool, *layer, *step, qkv, out);
}

void headrace_forward(Pool* pool, const Decoder* decoder, const Step* step, const LoraRows* loras, float* x) {
  forward(*pool, *decoder, *step, loras, x);
}

void headrace_logits(Pool* pool, const Decoder* decoder, const float* rows, int count, float* out) {
  logits(*pool, *decoder, rows, count, out);
}
}
