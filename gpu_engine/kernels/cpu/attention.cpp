#include "attention.h"

#include <algorithm>
#include <vector>

#include "inputs.h"
#include "simd.h"

namespace headrace {
namespace {

// A cache whose elements are E: float, or uint16_t for bf16.
template <class E>
struct Attention {
  const AttentionLayer& layer;
  const Step& step;
  float *qkv, *out;

  int group() const { return layer.heads / layer.kv_heads; }
  int64_t row_size() const { return int64_t(layer.heads + 2 * layer.kv_heads) * layer.head_size; }
  float* head(int token, int head) const { return qkv + token * row_size() + int64_t(head) * layer.head_size; }
  int64_t at(int block, int kv) const { return (int64_t(block) * layer.kv_heads + kv) * layer.head_size * layer.block; }
  E* keys(int block, int kv) const { return static_cast<E*>(layer.keys) + at(block, kv); }
  E* values(int block, int kv) const { return static_cast<E*>(layer.values) + at(block, kv); }

  // ------------------------------------------------------------------------------------------- before

  void prepare(int token) const {
    for (int h = 0; h < layer.heads + layer.kv_heads; h++) {
      const float* norm = h < layer.heads ? layer.query_norm : layer.key_norm;
      if (norm) normalise(head(token, h), norm, layer.eps, layer.head_size, head(token, h));
      rotate(head(token, h), token);
    }
    if (step.slots[token] >= 0) keep(token);
  }

  // Dimension i pairs with i + rotated / 2, as in GPT-NeoX.
  void rotate(float* x, int token) const {
    const int half = layer.rotated / 2;
    if (half == 0) return;
    const int64_t at = step.positions[token] * half;
    const float *c = layer.cosines + at, *s = layer.sines + at;
    for (int i = 0; i < half; i++) {
      const float a = x[i], b = x[i + half];
      x[i] = a * c[i] - b * s[i];
      x[i + half] = b * c[i] + a * s[i];
    }
  }

  void keep(int token) const {
    const int64_t slot = step.slots[token];
    const int block = static_cast<int>(slot / layer.block), place = static_cast<int>(slot % layer.block);
    for (int kv = 0; kv < layer.kv_heads; kv++) {
      const float *k = head(token, layer.heads + kv), *v = head(token, layer.heads + layer.kv_heads + kv);
      E* key = keys(block, kv) + place;
      E* value = values(block, kv) + int64_t(place) * layer.head_size;
      for (int d = 0; d < layer.head_size; d++) {
        store(key + int64_t(d) * layer.block, k[d]);
        store(value + d, v[d]);
      }
    }
  }
};

// R rows, each a (token, query head) of one sequence and one KV head.
template <class E, int R>
struct Tile {
  const Attention<E>& a;
  const int32_t* table;
  int kv;
  int limit[R];  // row r sees the positions before it
  const float* query[R];
  float* result[R];

  int block() const { return a.layer.block; }
  // Positions that any row sees, from a block's beginning to a block's end.
  int begin() const {
    const int seen = a.layer.window;
    return seen && limit[0] > seen ? (limit[0] - seen) / block() * block() : 0;
  }
  int end() const { return round_up(limit[R - 1], block()); }

  void attend() const {
    const int first = begin(), width = end() - first;
    float* scores = scratch_of<float>(3, int64_t(R) * width);  // [R][width]
    score(scores, first, width);
    float inverse[R];
    for (int r = 0; r < R; r++) inverse[r] = soften(scores + int64_t(r) * width, r, first, width);
    int d = 0;
    for (; d + 2 * kLanes <= a.layer.head_size; d += 2 * kLanes) combine<2>(scores, inverse, first, width, d);
    for (; d < a.layer.head_size; d += kLanes) combine<1>(scores, inverse, first, width, d);
  }

  void score(float* scores, int first, int width) const {
    float* q = scratch_of<float>(4, int64_t(R) * a.layer.head_size);  // [head size][R]
    for (int d = 0; d < a.layer.head_size; d++)
      for (int r = 0; r < R; r++) q[d * R + r] = query[r][d] * a.layer.scale;
    for (int at = 0; at < width; at += block()) {
      const E* keys = a.keys(table[(first + at) / block()], kv);
      if (at + block() < width) fetch(a.keys(table[(first + at) / block() + 1], kv));
      int t = 0;
      for (; t + 2 * kLanes <= block(); t += 2 * kLanes) score_vectors<2>(keys + t, q, scores + at + t, width);
      for (; t < block(); t += kLanes) score_vectors<1>(keys + t, q, scores + at + t, width);
    }
  }

  template <int V>
  void score_vectors(const E* keys, const float* q, float* scores, int width) const {
    Vec sums[V][R];
    for (int v = 0; v < V; v++)
      for (int r = 0; r < R; r++) sums[v][r] = splat(0.0f);
    for (int d = 0; d < a.layer.head_size; d++, keys += block(), q += R) {
      Vec key[V];
      for (int v = 0; v < V; v++) key[v] = load(keys + v * kLanes);
      for (int r = 0; r < R; r++) {
        const Vec x = splat(q[r]);
        for (int v = 0; v < V; v++) sums[v][r] = fma(key[v], x, sums[v][r]);
      }
    }
    for (int v = 0; v < V; v++)
      for (int r = 0; r < R; r++) store(scores + int64_t(r) * width + v * kLanes, sums[v][r]);
  }

  // Scores to weights, 0 where the row does not see; returns 1 / their sum.
  float soften(float* row, int r, int first, int width) const {
    const int hidden = a.layer.window ? std::max(0, limit[r] - a.layer.window - first) : 0;
    std::fill(row, row + hidden, -INFINITY);
    std::fill(row + limit[r] - first, row + width, -INFINITY);
    if (a.layer.soft_cap > 0)
      for (int i = 0; i < width; i += kLanes) store(row + i, bend(load(row + i)));
    Vec most = load(row);
    for (int i = kLanes; i < width; i += kLanes) most = max(most, load(row + i));
    const Vec top = splat(max_of(most));
    Vec sum = splat(0.0f);
    for (int i = 0; i < width; i += kLanes) {
      const Vec weight = exp_or_zero(sub(load(row + i), top));
      sum = add(sum, weight);
      store(row + i, weight);
    }
    return 1.0f / sum_of(sum);
  }

  // cap * tanh(x / cap); -infinity stays what it is.
  Vec bend(Vec x) const {
    const Vec cap = splat(a.layer.soft_cap);
    const Vec e = exp(mul(x, splat(2.0f / a.layer.soft_cap)));
    const Vec bent = sub(cap, div(add(cap, cap), add(e, splat(1.0f))));
    return add(bent, keep_unless_less(x, splat(-3e38f), x));
  }

  template <int V>
  void combine(const float* weights, const float* inverse, int first, int width, int d) const {
    Vec sums[R][V];
    for (int r = 0; r < R; r++)
      for (int v = 0; v < V; v++) sums[r][v] = splat(0.0f);
    const int last = limit[R - 1] - first;
    for (int at = 0; at < width; at += block()) {
      const E* value = a.values(table[(first + at) / block()], kv) + d;
      if (d == 0 && at + block() < width) fetch(a.values(table[(first + at) / block() + 1], kv));
      for (int t = at; t < std::min(at + block(), last); t++, value += a.layer.head_size) {
        Vec x[V];
        for (int v = 0; v < V; v++) x[v] = load(value + v * kLanes);
        for (int r = 0; r < R; r++) {
          const Vec weight = splat(weights[int64_t(r) * width + t]);
          for (int v = 0; v < V; v++) sums[r][v] = fma(x[v], weight, sums[r][v]);
        }
      }
    }
    for (int r = 0; r < R; r++)
      for (int v = 0; v < V; v++) store(result[r] + d + v * kLanes, mul(sums[r][v], splat(inverse[r])));
  }

  // The next block, while this one is computed: blocks lie anywhere, so the processor cannot guess.
  void fetch(const E* at) const {
    const char* p = reinterpret_cast<const char*>(at);
    const int bytes = a.layer.head_size * block() * static_cast<int>(sizeof(E));
    for (int i = 0; i < bytes; i += 64) _mm_prefetch(p + i, _MM_HINT_T0);
  }
};

template <class E, int R = kMaxRows>
void attend_rows(const Attention<E>& a, int sequence, int kv, int first, int rows) {
  if constexpr (R > 1)
    if (rows < R) return attend_rows<E, R - 1>(a, sequence, kv, first, rows);
  const int start = a.step.query_start[sequence], length = a.step.query_start[sequence + 1] - start;
  Tile<E, R> tile{a, a.step.block_tables + int64_t(sequence) * a.step.table_stride, kv, {}, {}, {}};
  for (int r = 0; r < R; r++) {
    const int token = (first + r) / a.group(), head = kv * a.group() + (first + r) % a.group();
    tile.query[r] = a.head(start + token, head);
    tile.result[r] = a.out + (int64_t(start + token) * a.layer.heads + head) * a.layer.head_size;
    tile.limit[r] = a.step.context_lens[sequence] - length + token + 1;
  }
  tile.attend();
}

struct Work {
  int sequence, kv, first, rows;
};

// One entry a tile; neighbours share keys and values.
template <class E>
std::vector<Work> split(const Attention<E>& a) {
  std::vector<Work> work;
  for (int sequence = 0; sequence < a.step.sequences; sequence++) {
    const int rows = (a.step.query_start[sequence + 1] - a.step.query_start[sequence]) * a.group();
    const int tiles = (rows + kMaxRows - 1) / kMaxRows;
    for (int kv = 0; kv < a.layer.kv_heads; kv++)
      for (int t = 0; t < tiles; t++) {
        const int first = static_cast<int>(int64_t(rows) * t / tiles), last = static_cast<int>(int64_t(rows) * (t + 1) / tiles);
        work.push_back({sequence, kv, first, last - first});
      }
  }
  return work;
}

template <class E>
void run(Pool& pool, const Attention<E>& a) {
  constexpr int kTokens = 4, kTiles = 2;  // a chunk of work
  const int tokens = a.step.tokens;
  pool.run((tokens + kTokens - 1) / kTokens, [&](int chunk) {
    for (int t = chunk * kTokens; t < std::min(tokens, (chunk + 1) * kTokens); t++) a.prepare(t);
  });
  const std::vector<Work> work = split(a);
  const int size = static_cast<int>(work.size());
  pool.run((size + kTiles - 1) / kTiles, [&](int chunk) {
    for (int i = chunk * kTiles; i < std::min(size, (chunk + 1) * kTiles); i++)
      attend_rows(a, work[i].sequence, work[i].kv, work[i].first, work[i].rows);
  });
}

}  // namespace

void attend(Pool& pool, const AttentionLayer& layer, const Step& step, float* qkv, float* out) {
  if (static_cast<CacheFormat>(layer.cache_format) == CacheFormat::kFloat32)
    run(pool, Attention<float>{layer, step, qkv, out});
  else
    run(pool, Attention<uint16_t>{layer, step, qkv, out});
}

}  // namespace headrace
