#include "decoder.h"

#include "inputs.h"

namespace headrace {
namespace {

// Rows of one step on their way through the layers.
struct Forward {
  Pool& pool;
  const Decoder& decoder;
  const Step& step;
  const LoraRows* loras;
  float* x;  // [tokens][hidden]

  void run() {
    for (int i = 0; i < decoder.num_layers; i++) {
      const DecoderLoras adapters = loras ? loras->layers[i] : DecoderLoras{};
      attention(decoder.layers[i], adapters);
      mlp(decoder.layers[i], adapters);
    }
    each_row([&](float* row, const float*) { normalise(row, decoder.norm, decoder.eps, decoder.hidden, row); }, nullptr);
  }

  // A product, with what the adapters of its rows add to it.
  void multiply(const Linear& layer, const LoraLayer* adapters, const float* input, const float* norm, Into into, float* out) {
    if (!adapters) return linear(pool, layer, input, step.tokens, norm, decoder.eps, into, out);
    const Shrunk shrunk = shrink(pool, *loras, adapters, layer.inputs, input, norm, decoder.eps);
    linear(pool, layer, input, step.tokens, norm, decoder.eps, into, out, &shrunk);
  }

  void attention(const Layer& layer, const DecoderLoras& adapters) {
    float* qkv = scratch_of<float>(5, int64_t(step.tokens) * layer.qkv.outputs);
    float* attended = scratch_of<float>(6, int64_t(step.tokens) * layer.output.inputs);
    multiply(layer.qkv, adapters.qkv, x, layer.attention_norm, Into::kStore, qkv);
    attend(pool, layer.attention, step, qkv, attended);
    add_back(layer.output, adapters.output, attended, layer.post_attention_norm);
  }

  void mlp(const Layer& layer, const DecoderLoras& adapters) {
    if (layer.experts.count > 0)
      return add_experts(pool, layer.experts, static_cast<Into>(layer.gate), layer.mlp_norm, decoder.eps, step.tokens, x);
    float* gated = scratch_of<float>(6, int64_t(step.tokens) * layer.down.inputs);
    multiply(layer.gate_up, adapters.gate_up, x, layer.mlp_norm, static_cast<Into>(layer.gate), gated);
    add_back(layer.down, adapters.down, gated, layer.post_mlp_norm);
  }

  // x += product, or the normalised product where a norm stands behind it.
  void add_back(const Linear& layer, const LoraLayer* adapters, const float* input, const float* post_norm) {
    if (!post_norm) return multiply(layer, adapters, input, nullptr, Into::kAdd, x);
    float* product = scratch_of<float>(7, int64_t(step.tokens) * decoder.hidden);
    multiply(layer, adapters, input, nullptr, Into::kStore, product);
    each_row([&](float* row, const float* from) {
      float* scaled = scratch_of<float>(0, decoder.hidden);
      normalise(from, post_norm, decoder.eps, decoder.hidden, scaled);
      for (int i = 0; i < decoder.hidden; i++) row[i] += scaled[i];
    }, product);
  }

  template <class F>
  void each_row(const F& f, const float* beside) {
    constexpr int kRows = 8;
    pool.run((step.tokens + kRows - 1) / kRows, [&](int chunk) {
      for (int t = chunk * kRows; t < std::min(step.tokens, (chunk + 1) * kRows); t++)
        f(x + int64_t(t) * decoder.hidden, beside ? beside + int64_t(t) * decoder.hidden : nullptr);
    });
  }
};

}  // namespace

void forward(Pool& pool, const Decoder& decoder, const Step& step, const LoraRows* loras, float* x) {
  Forward{pool, decoder, step, loras, x}.run();
}

void logits(Pool& pool, const Decoder& decoder, const float* rows, int count, float* out) {
  linear(pool, decoder.head, rows, count, nullptr, 0, Into::kStore, out);
}

}  // namespace headrace
