#include "linear.h"

#include "inputs.h"

namespace headrace {
namespace {

constexpr int kRowsAtOnce = 96;    // rows whose packed inputs stay in the second-level cache
constexpr int kChunksAThread = 4;  // of work, so that threads end together although one may be disturbed
constexpr int kAhead = 4096;       // bytes

// Rows of the step, cut into tiles of about the same height.
struct Tiling {
  int rows, tiles;
  explicit Tiling(int rows) : rows(rows), tiles((rows + kMaxRows - 1) / kMaxRows) {}
  int first(int tile) const { return static_cast<int>(int64_t(rows) * tile / tiles); }
};

bool is_gated(Into into) { return into == Into::kGatedSilu || into == Into::kGatedGelu; }

struct Product {
  const Linear& layer;
  int rows;
  Into into;
  float* out;
  const uint32_t* words;
  const float* scales;
  const Shrunk* lora;

  int blocks() const { return round_up(layer.outputs, kColumns) / kColumns; }
};

HEADRACE_INLINE Vec sigmoid_times(Vec x, Vec by) {  // by * x / (1 + e^-x)
  return div(mul(x, by), add(splat(1.0f), exp(sub(splat(0.0f), x))));
}

// GELU by tanh (Hendrycks & Gimpel 2016): x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
HEADRACE_INLINE Vec gelu_times(Vec x, Vec by) {
  const Vec cubed = fma(mul(x, x), mul(x, splat(0.044715f)), x);
  return div(mul(x, by), add(splat(1.0f), exp(mul(cubed, splat(-1.5957691216f)))));
}

void write(float* out, Vec v, int count, bool onto) {
  if (count >= kLanes) return store(out, onto ? add(load(out), v) : v);
  float lanes[kLanes];
  store(lanes, v);
  for (int i = 0; i < count; i++) out[i] = onto ? out[i] + lanes[i] : lanes[i];
}

// One row of a finished tile, [kColumns], to where it belongs.
template <class F>
HEADRACE_INLINE void finish_row(const Product& p, int block, int row, const float* sums) {
  Vec left = load(sums), right = load(sums + kLanes);
  const int64_t column = int64_t(block) * kColumns;
  if constexpr (F::kIntegers && !F::kChunkScales) {
    left = mul(left, load(p.layer.scales + column));
    right = mul(right, load(p.layer.scales + column + kLanes));
  }
  if (p.layer.bias) {
    left = add(left, load(p.layer.bias + column));
    right = add(right, load(p.layer.bias + column + kLanes));
  }
  if (p.lora) p.lora->expand(row, block, left, right);
  if (is_gated(p.into)) {
    const int width = p.layer.outputs / 2, at = block * kLanes;
    const Vec gated = p.into == Into::kGatedSilu ? sigmoid_times(left, right) : gelu_times(left, right);
    return write(p.out + int64_t(row) * width + at, gated, width - at, false);
  }
  float* out = p.out + int64_t(row) * p.layer.outputs + column;
  const int count = p.layer.outputs - static_cast<int>(column);
  write(out, left, count, p.into == Into::kAdd);
  if (count > kLanes) write(out + kLanes, right, count - kLanes, p.into == Into::kAdd);
}

// R rows of one block. `next`: weights that will be needed soon, fetched meanwhile, `lines` cache lines a chunk.
template <class F, int R>
void tile(const Product& p, int block, int first, const char* next, int lines) {
  constexpr int kWords = F::kChunk / F::kPerWord;
  const int chunks = chunks_of<F>(p.layer.inputs);
  const char* w = p.layer.weights + int64_t(block) * chunks * kWords * F::kBytes;
  const float* column_scales = F::kChunkScales ? p.layer.scales + int64_t(block) * chunks * kColumns : nullptr;
  const uint32_t* x = p.words + int64_t(first) * chunks * kWords;
  const float* scales = p.scales + int64_t(first) * chunks * F::kInputScales;
  alignas(64) float sums[R * kColumns] = {};
  for (int chunk = 0; chunk < chunks; chunk++) {
    for (int line = 0; line < lines; line++, next += 64) _mm_prefetch(next, _MM_HINT_T0);
    Rows<F, R> rows;
    rows.clear();
    for (int word = 0; word < kWords; word++, w += F::kBytes, x += R) rows.step(F::weights(w), x);
    const typename F::Scales columns[] = {F::scales(column_scales, 0), F::scales(column_scales, 1)};
    rows.flush(sums, scales, columns);
    scales += R * F::kInputScales;
    if (F::kChunkScales) column_scales += kColumns;
  }
  for (int r = 0; r < R; r++) finish_row<F>(p, block, first + r, sums + r * kColumns);
}

template <class F, int R = kMaxRows>
HEADRACE_INLINE void tile_of(int rows, const Product& p, int block, int first, const char* next, int lines) {
  if (rows == R) return tile<F, R>(p, block, first, next, lines);
  if constexpr (R > 1) tile_of<F, R - 1>(rows, p, block, first, next, lines);
}

// Tiles [begin, end) of one block. Together they fetch the next block's weights, each its share: a processor that
// waited for memory in the first tile only would let the memory rest during all others. A tile by itself fetches
// what it needs itself soon, so that more reads are under way than the processor begins of its own accord.
template <class F>
void multiply_block(const Product& p, const Tiling& tiling, int block, int begin, int end) {
  const int chunks = chunks_of<F>(p.layer.inputs);
  const int64_t lines = int64_t(chunks) * (F::kChunk / F::kPerWord) * F::kBytes / 64;
  const char* own = p.layer.weights + block * lines * 64;
  const bool is_alone = end - begin == 1;
  const char* next = own + (is_alone ? kAhead : lines * 64);
  const int share = static_cast<int>(lines / (int64_t(end - begin) * chunks));
  for (int t = begin; t < end; t++) {
    const int first = tiling.first(t);
    const char* from = next + int64_t(t - begin) * share * chunks * 64;
    tile_of<F>(tiling.first(t + 1) - first, p, block, first, from, is_alone || block + 1 < p.blocks() ? share : 0);
  }
}

// A part of the blocks of one product, for a part of its tiles.
template <class F>
void multiply_piece(const Product& p, int strip, int strips, int band, int bands) {
  const Tiling tiling(p.rows);
  const int begin = static_cast<int>(int64_t(tiling.tiles) * band / bands);
  const int end = static_cast<int>(int64_t(tiling.tiles) * (band + 1) / bands);
  const int last = static_cast<int>(int64_t(p.blocks()) * (strip + 1) / strips);
  for (int block = static_cast<int>(int64_t(p.blocks()) * strip / strips); block < last; block++)
    multiply_block<F>(p, tiling, block, begin, end);
}

template <class F>
void multiply(Pool& pool, const std::vector<Product>& products) {
  struct Piece {
    const Product* product;
    int strip, strips, band, bands;
  };
  std::vector<Piece> pieces;
  const int wanted = pool.threads() * kChunksAThread, count = static_cast<int>(products.size());
  for (const Product& p : products) {
    const int bands = (p.rows + kRowsAtOnce - 1) / kRowsAtOnce;
    const int strips = std::min(p.blocks(), (wanted + count - 1) / count);
    for (int strip = 0; strip < strips; strip++)
      for (int band = 0; band < bands; band++) pieces.push_back({&p, strip, strips, band, bands});
  }
  pool.run(static_cast<int>(pieces.size()), [&](int i) {
    const Piece& piece = pieces[i];
    multiply_piece<F>(*piece.product, piece.strip, piece.strips, piece.band, piece.bands);
  });
}

// Tiles never hold rows of two matrices.
template <class F>
void pack_tiles(Pool& pool, const std::vector<Share>& shares, const Source& source, uint32_t* words, float* scales) {
  const int64_t row_words = padded_k(source.columns) / F::kPerWord;
  const int64_t row_scales = int64_t(chunks_of<F>(source.columns)) * F::kInputScales;
  std::vector<std::pair<int, int>> tiles;  // from where to where
  for (const Share& share : shares) {
    const Tiling tiling(share.rows);
    for (int t = 0; t < tiling.tiles; t++) tiles.emplace_back(share.first + tiling.first(t), share.first + tiling.first(t + 1));
  }
  pool.run(static_cast<int>(tiles.size()), [&](int i) {
    const auto [first, last] = tiles[i];
    for (int r = first; r < last; r++)
      pack_row<F>(source, source.row(r), last - first, words + first * row_words + (r - first),
                  scales + first * row_scales + (r - first) * F::kInputScales);
  });
}

void multiply_shares(Pool& pool, const std::vector<Share>& shares, const Source& source, Into into, float* out, const Shrunk* lora) {
  const Linear& any = *shares.front().layer;
  const int rows = shares.back().first + shares.back().rows;
  const int width = is_gated(into) ? any.outputs / 2 : any.outputs;
  with_format(static_cast<Format>(any.format), [&](auto f) {
    typedef decltype(f) F;
    const int64_t row_words = padded_k(any.inputs) / F::kPerWord;
    const int64_t row_scales = int64_t(chunks_of<F>(any.inputs)) * F::kInputScales;
    uint32_t* words = scratch_of<uint32_t>(1, rows * row_words);
    float* scales = scratch_of<float>(2, rows * row_scales);
    pack_tiles<F>(pool, shares, source, words, scales);
    std::vector<Product> products;
    for (const Share& s : shares)
      products.push_back({*s.layer, s.rows, into, out + int64_t(s.first) * width, words + s.first * row_words, scales + s.first * row_scales, lora});
    multiply<F>(pool, products);
  });
}

}  // namespace

void linear(Pool& pool, const Linear& layer, const float* x, int rows, const float* norm, float eps, Into into, float* out,
            const Shrunk* lora) {
  if (rows > 0) multiply_shares(pool, {{&layer, 0, rows}}, Source{x, nullptr, layer.inputs, norm, eps}, into, out, lora);
}

void linear(Pool& pool, const std::vector<Share>& shares, const float* x, const int32_t* sources, const float* norm,
            float eps, Into into, float* out) {
  const Source source{x, sources, shares.front().layer->inputs, norm, eps};
  multiply_shares(pool, shares, source, into, out, nullptr);
}

}  // namespace headrace
