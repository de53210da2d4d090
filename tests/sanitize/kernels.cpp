// Drives the CPU kernels over many shapes, to be run under the sanitizers: reads and writes beyond what was
// allocated, undefined arithmetic, and races in the pool. What is computed is checked by the Python tests; here
// only that a row is the same alone and in a batch, which a race would break.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "decoder.h"

using namespace headrace;

namespace {

std::mt19937 generator(7);

std::vector<float> numbers(int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> drawn(count);
  for (float& x : drawn) x = normal(generator);
  return drawn;
}

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

// Exactly as large as the kernels are told, so that one byte too far is seen.
struct Packed {
  std::vector<char> weights;
  std::vector<float> scales;
  Linear layer;

  Packed(Pool& pool, Format format, int outputs, int inputs, bool gated)
      : weights(packed_bytes(format, outputs, inputs)), scales(num_scales(format, outputs, inputs)) {
    const std::vector<float> rows = numbers(int64_t(outputs) * inputs);
    pack(pool, format, rows.data(), outputs, inputs, gated, weights.data(), scales.data());
    layer = {weights.data(), scales.data(), nullptr, inputs, outputs, static_cast<int32_t>(format)};
  }
};

void products(Pool& pool) {
  for (Format format : {Format::kFloat32, Format::kBf16, Format::kInt16, Format::kInt8, Format::kInt4})
    for (auto [outputs, inputs] : {std::pair{2, 1}, {34, 65}, {130, 192}})
      for (int rows : {1, 5, 13, 99}) {
        const bool gated = rows % 2;
        const Packed packed(pool, format, outputs, inputs, gated);
        const std::vector<float> x = numbers(int64_t(rows) * inputs), norm = numbers(inputs);
        const int width = gated ? outputs / 2 : outputs;
        const Into into = gated ? Into::kGatedSilu : Into::kAdd;
        std::vector<float> together(int64_t(rows) * width), alone(width);
        linear(pool, packed.layer, x.data(), rows, norm.data(), 1e-5f, into, together.data());
        linear(pool, packed.layer, x.data() + int64_t(rows - 1) * inputs, 1, norm.data(), 1e-5f, into, alone.data());
        check(std::equal(alone.begin(), alone.end(), together.end() - width), "a row depends on the others");
      }
}

// More experts than tokens take, and some that none takes; one router's scores are not finite.
void expert_products(Pool& pool, Format format) {
  const int hidden = 70, inner = 34, count = 5, per_token = 2, tokens = 21;
  std::vector<Packed> packed;
  std::vector<Linear> gate_up, down;
  for (int i = 0; i < count; i++) {
    packed.emplace_back(pool, format, 2 * inner, hidden, true);
    gate_up.push_back(packed.back().layer);
    packed.emplace_back(pool, format, hidden, inner, false);
    down.push_back(packed.back().layer);
  }
  const Packed router(pool, Format::kFloat32, count, hidden, false);
  const Experts experts{router.layer, gate_up.data(), down.data(), count, per_token, 1};
  std::vector<float> x = numbers(tokens * hidden);
  const std::vector<float> norm = numbers(hidden);
  x[7 * hidden] = NAN;
  std::vector<float> alone(x.end() - hidden, x.end());
  add_experts(pool, experts, Into::kGatedSilu, norm.data(), 1e-5f, tokens, x.data());
  add_experts(pool, experts, Into::kGatedSilu, norm.data(), 1e-5f, 1, alone.data());
  check(std::equal(alone.begin(), alone.end(), x.end() - hidden), "a token's experts depend on the others");
  check(std::isnan(x[7 * hidden + 1]) && !std::isnan(x[0]), "what is not finite went astray");
}

// Adapters of several ranks, the last of which adds to the second half of the columns only.
void adapted_products(Pool& pool) {
  const int inputs = 65, outputs = 4 * kLanes + 3, rows = 13, vectors = 5;
  const Packed packed(pool, Format::kInt16, outputs, inputs, false);
  std::vector<std::vector<float>> held;
  std::vector<LoraPart> parts;
  std::vector<LoraLayer> layers;
  for (int rank : {1, kLanes, kLanes + 3}) {
    const int first = rank > kLanes ? 2 : 0;
    held.push_back(numbers(int64_t(vectors - first) * rank * kLanes));
    parts.push_back({held.back().data(), 0, rank, first, 1, vectors - first});
  }
  for (const LoraPart& part : parts) {
    const int ranks = (part.ranks + kLanes - 1) / kLanes * kLanes;
    held.push_back(numbers(int64_t(ranks) * inputs));
    layers.push_back({held.back().data(), &part, ranks, 1});
  }
  layers.push_back({});
  const std::vector<float> x = numbers(int64_t(rows) * inputs), norm = numbers(inputs);
  std::vector<int32_t> of_row(rows), order;
  for (int r = 0; r < rows; r++) of_row[r] = r % 5 - 1;
  for (int adapter = 0; adapter < 4; adapter++)
    for (int r = 0; r < rows; r++)
      if (of_row[r] == adapter) order.push_back(r);
  const LoraRows all{nullptr, of_row.data(), order.data(), static_cast<int32_t>(order.size())};
  std::vector<float> together(int64_t(rows) * outputs), alone(outputs);
  const Shrunk shrunk = shrink(pool, all, layers.data(), inputs, x.data(), norm.data(), 1e-5f);
  linear(pool, packed.layer, x.data(), rows, norm.data(), 1e-5f, Into::kAdd, together.data(), &shrunk);
  for (int r = 0; r < rows; r++) {
    const int32_t first = 0;
    const LoraRows one{nullptr, &of_row[r], &first, of_row[r] < 0 ? 0 : 1};
    const float* row = x.data() + int64_t(r) * inputs;
    std::fill(alone.begin(), alone.end(), 0.0f);
    const Shrunk own = shrink(pool, one, layers.data(), inputs, row, norm.data(), 1e-5f);
    linear(pool, packed.layer, row, 1, norm.data(), 1e-5f, Into::kAdd, alone.data(), &own);
    check(std::equal(alone.begin(), alone.end(), together.begin() + int64_t(r) * outputs), "an adapted row depends on the others");
  }
}

void attention(Pool& pool, CacheFormat format, int window, float soft_cap) {
  const int heads = 6, kv_heads = 2, size = 48, block = 16, blocks = 9;
  const std::vector<int> lengths = {1, 37, 1, 20}, contexts = {40, 37, 3, 33};
  std::vector<int32_t> starts = {0}, tables, seen;
  std::vector<int64_t> slots;
  int next = 1;
  for (size_t s = 0; s < lengths.size(); s++) {
    std::vector<int32_t> table(3, 0);
    for (int b = 0; b * block < contexts[s]; b++) table[b] = next++ % blocks;
    for (int t = contexts[s] - lengths[s]; t < contexts[s]; t++) slots.push_back(int64_t(table[t / block]) * block + t % block);
    starts.push_back(starts.back() + lengths[s]);
    seen.push_back(contexts[s]);
    tables.insert(tables.end(), table.begin(), table.end());
  }
  const int tokens = starts.back();
  const int64_t elements = int64_t(blocks) * kv_heads * size * block;
  std::vector<char> keys(elements * 4), values(elements * 4);
  std::vector<float> qkv = numbers(int64_t(tokens) * (heads + 2 * kv_heads) * size);
  const std::vector<float> turn = numbers(int64_t(tokens) * size / 2), norm = numbers(size);
  std::vector<float> out(int64_t(tokens) * heads * size);
  const AttentionLayer layer{keys.data(), values.data(), norm.data(), norm.data(), turn.data(), turn.data(), heads, kv_heads,
                             size, size, block, window, static_cast<int32_t>(format), 0.2f, soft_cap, 1e-5f};
  const Step step{slots.data(), starts.data(), seen.data(), tables.data(), tokens, static_cast<int32_t>(lengths.size()), 3};
  attend(pool, layer, step, qkv.data(), out.data());
}

void pools_beside_one_another() {
  std::vector<std::thread> callers;
  std::atomic<int> done{0};
  for (int i = 0; i < 3; i++)
    callers.emplace_back([&] {
      Pool pool(3, false);
      for (int job = 0; job < 2000; job++) {
        std::vector<int> marks(1 + job % 40);
        pool.run(static_cast<int>(marks.size()), [&](int chunk) { marks[chunk]++; });
        for (int mark : marks) check(mark == 1, "a chunk was not done once");
      }
      done++;
    });
  for (std::thread& caller : callers) caller.join();
  check(done == 3, "a pool did not end");
}

}  // namespace

int main() {
  Pool pool(3, false);
  products(pool);
  adapted_products(pool);
  for (Format format : {Format::kBf16, Format::kInt4}) expert_products(pool, format);
  for (CacheFormat format : {CacheFormat::kFloat32, CacheFormat::kBf16}) {
    attention(pool, format, 0, 0);
    attention(pool, format, 19, 30);
  }
  pools_beside_one_another();
  std::puts("all shapes done");
}
