// Paged attention on the CPU, fp32: writes the step's keys and values into the paged cache, then attends,
// in place over the blocks, prefill chunks and decodes alike.
//
// Cache of one layer: keys [blocks][kv heads][D][B], values [blocks][kv heads][B][D], B tokens a block. With
// keys transposed, eight tokens are one vector and a score needs no horizontal sum. All query heads of a
// group, and up to kRows (token, head) pairs, share each load of K and V.
//
// Scores of one tile stay in a scratch row, so the softmax is the plain two-pass one (maximum, then sum).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int kLanes = 8, kRows = 4;
typedef float vec __attribute__((vector_size(32), aligned(4)));
typedef int ivec __attribute__((vector_size(32), aligned(4)));

inline vec load(const float* p) { return *reinterpret_cast<const vec*>(p); }
inline void store(float* p, vec v) { *reinterpret_cast<vec*>(p) = v; }
inline vec splat(float x) { return vec{x, x, x, x, x, x, x, x}; }

// exp(x) for x <= 0: 2^n times a polynomial on [-ln2/2, ln2/2]; below -87 it is 0 (Cephes' expf).
inline vec exp_nonpositive(vec x) {
  ivec zero = x < splat(-87.0f);
  x = (vec)(((ivec)x & ~zero));
  vec shifted = x * 1.44269504f - 0.5f;
  ivec n = __builtin_convertvector(shifted, ivec);  // truncation is rounding to nearest here: shifted <= 0
  vec k = __builtin_convertvector(n, vec);
  vec r = x - k * 0.693359375f + k * 2.12194440e-4f;
  vec p = splat(1.9875691500e-4f);
  for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = p * r + c;
  vec y = p * r * r + r + 1.0f;
  vec scaled = y * (vec)((n + 127) << 23);
  return (vec)((ivec)scaled & ~zero);
}

struct Step {
  const float *q, *k, *v;
  float *k_cache, *v_cache, *out;
  const int64_t* slots;
  const int *query_start, *context_lens, *block_tables;
  int tokens, sequences, heads, kv_heads, dim, block, table_stride;
  float scale;

  int group() const { return heads / kv_heads; }
  float* keys(int block_id, int kv) const { return k_cache + (size_t(block_id) * kv_heads + kv) * dim * block; }
  float* values(int block_id, int kv) const { return v_cache + (size_t(block_id) * kv_heads + kv) * dim * block; }
};

// A slot below 0 is padding: nothing is stored.
void write_token(const Step& s, int token) {
  int64_t slot = s.slots[token];
  if (slot < 0) return;
  int block_id = static_cast<int>(slot / s.block), offset = static_cast<int>(slot % s.block);
  for (int kv = 0; kv < s.kv_heads; kv++) {
    size_t row = (size_t(token) * s.kv_heads + kv) * s.dim;
    float* keys = s.keys(block_id, kv) + offset;
    for (int d = 0; d < s.dim; d++) keys[size_t(d) * s.block] = s.k[row + d];
    std::memcpy(s.values(block_id, kv) + size_t(offset) * s.dim, s.v + row, sizeof(float) * s.dim);
  }
}

// R rows, each a (token, query head) of one sequence and one kv head; row r sees limit[r] positions.
template <int R>
struct Tile {
  const Step& s;
  const int* table;
  int kv, longest;
  const float* q[R];
  float* out[R];
  int limit[R];
  float* scores[R];  // [longest rounded up to a block]

  void attend() {
    score();
    float inverse[R];
    for (int r = 0; r < R; r++) inverse[r] = softmax(scores[r], limit[r]);
    combine(inverse);
  }

  void score() {
    for (int begin = 0; begin < longest; begin += s.block) {
      const float* keys = s.keys(table[begin / s.block], kv);
      for (int t = 0; t < s.block; t += kLanes) {
        vec sum[R] = {};
        for (int d = 0; d < s.dim; d++) {
          vec key = load(keys + size_t(d) * s.block + t);
          for (int r = 0; r < R; r++) sum[r] += key * q[r][d];
        }
        for (int r = 0; r < R; r++) store(scores[r] + begin + t, sum[r] * s.scale);
      }
    }
  }

  // Turns scores into weights, 0 from the limit on; returns 1 / their sum.
  float softmax(float* row, int limit) {
    float top = *std::max_element(row, row + limit);
    int end = (longest + s.block - 1) / s.block * s.block;
    std::fill(row + limit, row + end, -INFINITY);
    vec sums = {};
    for (int i = 0; i < end; i += kLanes) {
      vec weight = exp_nonpositive(load(row + i) - top);
      store(row + i, weight);
      sums += weight;
    }
    float sum = 0;
    for (int i = 0; i < kLanes; i++) sum += sums[i];
    return 1.0f / sum;
  }

  void combine(const float* inverse) {
    for (int d = 0; d < s.dim; d += kLanes) {
      vec sum[R] = {};
      for (int begin = 0; begin < longest; begin += s.block) {
        const float* values = s.values(table[begin / s.block], kv) + d;
        int n = std::min(s.block, longest - begin);
        for (int t = 0; t < n; t++) {
          vec value = load(values + size_t(t) * s.dim);
          for (int r = 0; r < R; r++) sum[r] += value * scores[r][begin + t];
        }
      }
      for (int r = 0; r < R; r++) store(out[r] + d, sum[r] * inverse[r]);
    }
  }
};

float* scratch(size_t floats) {
  static thread_local std::vector<float> buffer;
  if (buffer.size() < floats) buffer.resize(floats);
  return buffer.data();
}

// Rows [first, first + R) of one sequence's chunk and one kv head; row = token * group + head in the group.
template <int R>
void attend_rows(const Step& s, int sequence, int kv, int first) {
  int start = s.query_start[sequence], length = s.query_start[sequence + 1] - start;
  int context = s.context_lens[sequence], group = s.group();
  Tile<R> tile{s, s.block_tables + size_t(sequence) * s.table_stride, kv, 0, {}, {}, {}, {}};
  for (int r = 0; r < R; r++) {
    int token = (first + r) / group, head = kv * group + (first + r) % group;
    size_t at = (size_t(start + token) * s.heads + head) * s.dim;
    tile.q[r] = s.q + at;
    tile.out[r] = s.out + at;
    tile.limit[r] = context - length + token + 1;
  }
  tile.longest = tile.limit[R - 1];
  size_t width = (tile.longest + s.block - 1) / s.block * s.block;
  float* rows = scratch(width * R);
  for (int r = 0; r < R; r++) tile.scores[r] = rows + width * r;
  tile.attend();
}

void attend_chunk(const Step& s, int sequence, int kv, int first, int rows) {
  switch (rows) {
    case 1: return attend_rows<1>(s, sequence, kv, first);
    case 2: return attend_rows<2>(s, sequence, kv, first);
    case 3: return attend_rows<3>(s, sequence, kv, first);
    default: return attend_rows<kRows>(s, sequence, kv, first);
  }
}

struct Work {
  int sequence, kv, first, rows;
};

// One entry a tile, ordered so that neighbours share keys and values.
std::vector<Work> split(const Step& s) {
  std::vector<Work> work;
  for (int sequence = 0; sequence < s.sequences; sequence++) {
    int rows = (s.query_start[sequence + 1] - s.query_start[sequence]) * s.group();
    for (int kv = 0; kv < s.kv_heads; kv++)
      for (int first = 0; first < rows; first += kRows)
        work.push_back({sequence, kv, first, std::min(kRows, rows - first)});
  }
  return work;
}

}  // namespace

extern "C" {

// q, out [tokens, heads, dim]; k, v [tokens, kv_heads, dim]; slots [tokens] (below 0: padding);
// query_start [sequences + 1]; context_lens [sequences] (the step's tokens included);
// block_tables [sequences, table_stride]. dim and block are multiples of 8.
//
// The threads are torch's own OpenMP team (see build.py): a pool beside it would fight it for the cores
// in every layer, since both spin for a while before they sleep.
void paged_attention(const float* q, const float* k, const float* v, float* k_cache, float* v_cache,
                     const int64_t* slots, const int* query_start, const int* context_lens,
                     const int* block_tables, float* out, int tokens, int sequences, int heads, int kv_heads,
                     int dim, int block, int table_stride, float scale, int threads) {
  Step s{q,      k,         v,     k_cache,  v_cache, out,   slots,        query_start, context_lens, block_tables,
         tokens, sequences, heads, kv_heads, dim,     block, table_stride, scale};
  for (int token = 0; token < tokens; token++) write_token(s, token);
  const std::vector<Work> work = split(s);
  const int size = static_cast<int>(work.size());
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
  for (int i = 0; i < size; i++) attend_chunk(s, work[i].sequence, work[i].kv, work[i].first, work[i].rows);
}

}  // extern "C"
