// Sampling and scoring of logits rows. Each row is worked by one thread and depends on nothing but its own
// logits and parameters. The vocabulary is never sorted: maxima of chunks of 64 give a threshold that keeps
// little more than the k best; flat nucleus distributions go through a histogram, of which one bucket is sorted.
//
// Order of candidates everywhere: larger logit first, then lower id.
#include <algorithm>
#include <cmath>

#include "isa.h"
#include "lanes.h"
#include "ops.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int CHUNK = SAMPLER_CHUNK;
constexpr int BUCKETS = 2048;
constexpr int NUCLEUS_CHUNKS = 256;  // best chunks that are tried before a nucleus is thought flat
constexpr float COLDEST = 1e-5f;     // lower temperatures are greedy: 1 / T would overflow
const float NEG_INF = -__builtin_inff();

struct Candidate {
    float value;
    int32_t id;
};
struct Before {
    bool operator()(const Candidate& a, const Candidate& b) const {
        return a.value > b.value || (a.value == b.value && a.id < b.id);
    }
};
struct ById {
    bool operator()(const Candidate& a, const Candidate& b) const { return a.id < b.id; }
};
struct Larger {
    bool operator()(float a, float b) const { return a > b; }
};

struct Scratch {
    Candidate* list;   // [vocab]
    double* sums;      // [chunks or 2 * BUCKETS]
    float* raw;        // [vocab]
    float* maxima;     // [chunks]
    float* work;       // [chunks]
};

Scratch scratch_of(const Ctx& ctx, int64_t vocab) {
    const int64_t chunks = (vocab + CHUNK - 1) / CHUNK, sums = chunks > 2 * BUCKETS ? chunks : 2 * BUCKETS;
    Scratch s;
    char* p = ctx.scratch;
    s.sums = reinterpret_cast<double*>(p), p += sums * 8;
    s.list = reinterpret_cast<Candidate*>(p), p += vocab * 8;
    s.raw = reinterpret_cast<float*>(p), p += vocab * 4;
    s.maxima = reinterpret_cast<float*>(p), p += chunks * 4;
    s.work = reinterpret_cast<float*>(p);
    return s;
}

// The lanes of x that lie below n read as -inf beyond it.
OCTAVO_INLINE V load_logits(const float* x, int64_t n) {
    return n >= LANES ? load(x) : select((1u << n) - 1, load_part(x, int(n)), set1(NEG_INF));
}

// A row with the maxima of its chunks.
struct Row {
    const float* x;
    int64_t n;
    const float* maxima;
    int64_t chunks;
    float top;     // largest logit
    float bottom;  // smallest chunk maximum above -inf
    bool ok;       // no NaN, and top is finite
};

// The largest logit of each chunk [first, last), NaN where one is not a number.
void scan_chunks(const float* x, int64_t n, int64_t first, int64_t last, float* maxima) {
    static_assert(CHUNK == 4 * LANES);
    for (int64_t c = first; c < last; ++c) {
        V v[4];
        for (int64_t j = 0, i = c * CHUNK; j < 4; ++j, i += LANES) v[j] = i < n ? load_logits(x + i, n - i) : set1(NEG_INF);
        const uint32_t numbers = mask_eq(v[0], v[0]) & mask_eq(v[1], v[1]) & mask_eq(v[2], v[2]) & mask_eq(v[3], v[3]);
        maxima[c] = numbers == 0xffff ? max_lanes(max(max(v[0], v[1]), max(v[2], v[3]))) : __builtin_nanf("");
    }
}

Row row_of(const float* x, int64_t n, const float* maxima) {
    Row row = {x, n, maxima, (n + CHUNK - 1) / CHUNK, NEG_INF, __builtin_inff(), true};
    const V minus_inf = set1(NEG_INF);
    V top = minus_inf, bottom = minus_inf;  // bottom: negated, its least is the largest
    uint32_t numbers = 0xffff;
    for (int64_t i = 0; i < row.chunks; i += LANES) {
        const V v = load_logits(maxima + i, row.chunks - i);
        numbers &= mask_eq(v, v);
        top = max(top, v);
        bottom = max(bottom, select(mask_gt(v, minus_inf), set1(0.0f) - v, minus_inf));
    }
    row.top = max_lanes(top), row.bottom = -max_lanes(bottom);
    row.ok = numbers == 0xffff && row.top > NEG_INF && row.top < __builtin_inff();
    return row;
}

Row scan(const float* x, int64_t n, float* maxima) {
    scan_chunks(x, n, 0, (n + CHUNK - 1) / CHUNK, maxima);
    return row_of(x, n, maxima);
}

float exp_of(float x) {
    alignas(64) float t[LANES];
    store(t, expv(set1(x)));
    return t[0];
}

// What is kept: floor <= (x - top) / T, and not behind `last` in the order of candidates.
struct Keep {
    float top, inv_t;
    float floor = NEG_INF;
    Candidate last = {NEG_INF, -1};
};
OCTAVO_INLINE V scaled(const Keep& k, V x) { return (x - set1(k.top)) * set1(k.inv_t); }
OCTAVO_INLINE uint32_t kept_lanes(const Keep& k, V x, V y, int64_t id) {
    uint32_t mask = mask_gt(x, set1(k.last.value)), ties = mask_eq(x, set1(k.last.value));
    if (ties) {  // ids up to last.id
        const int64_t upto = int64_t(k.last.id) - id + 1;
        mask |= upto >= LANES ? ties : upto <= 0 ? 0 : ties & ((1u << upto) - 1);
    }
    return mask & mask_ge(y, set1(k.floor));
}

// Sum of exp((x - top) / T) over what is kept; sums[c], if given, is the part of chunk c.
double sum_weights(const Row& row, const Keep& keep, double* sums) {
    double total = 0;
    for (int64_t c = 0; c < row.chunks; ++c) {
        double part = 0;
        if (row.maxima[c] >= keep.last.value && row.maxima[c] > NEG_INF) {
            V sum = set1(0.0f);
            for (int64_t i = c * CHUNK; i < row.n && i < (c + 1) * CHUNK; i += LANES) {
                const V x = load_logits(row.x + i, row.n - i), y = scaled(keep, x);
                sum = sum + select(kept_lanes(keep, x, y, i), expv(y), set1(0.0f));
            }
            part = double(sum_lanes(sum));
        }
        if (sums) sums[c] = part;
        total += part;
    }
    return total;
}

// log of the sum of exp(x).
double log_sum_exp(const Row& row) {
    double total = 0;
    for (int64_t block = 0; block < row.n; block += 16 * CHUNK) {  // short float sums, then double
        V sum = set1(0.0f);
        const int64_t end = row.n - block < 16 * CHUNK ? row.n : block + 16 * CHUNK;
        for (int64_t i = block; i < end; i += LANES) sum = sum + expv(load_logits(row.x + i, row.n - i) - set1(row.top));
        total += double(sum_lanes(sum));
    }
    return double(row.top) + std::log(total);
}

// Appends the candidates with x >= threshold (never -inf), in id order.
int64_t collect(const Row& row, float threshold, Candidate* list) {
    int64_t count = 0;
    const V limit = set1(threshold), minus_inf = set1(NEG_INF);
    for (int64_t c = 0; c < row.chunks; ++c) {
        if (row.maxima[c] < threshold) continue;
        for (int64_t i = c * CHUNK; i < row.n && i < (c + 1) * CHUNK; i += LANES) {
            const V x = load_logits(row.x + i, row.n - i);
            for (uint32_t mask = mask_ge(x, limit) & mask_gt(x, minus_inf); mask; mask &= mask - 1) {
                const int64_t id = i + __builtin_ctz(mask);
                list[count++] = {row.x[id], int32_t(id)};
            }
        }
    }
    return count;
}

// The k-th largest chunk maximum: at least k logits are as large.
float chunk_threshold(const Row& row, int64_t k, float* work) {
    std::memcpy(work, row.maxima, size_t(row.chunks) * 4);
    std::nth_element(work, work + (k - 1), work + row.chunks, Larger());
    return work[k - 1];
}

// Buckets of (top - x) / T: a larger logit never lies in a later bucket. A bucket's amount is the sum of its
// weights, or the number of its candidates. Two sub-buckets each (even and odd lanes): neighbours often share
// a bucket, and an addition to memory would wait for the one before.
struct Histogram {
    const Row& row;
    const Keep& keep;
    double* amounts;  // [2][BUCKETS], afterwards [BUCKETS]
    float width;

    V index(V y) const {
        return min(set1(float(BUCKETS - 1)), (set1(0.0f) - y) * set1(width));  // NaN cannot be: the row is ok
    }
    template <bool COUNT>
    void fill() {
        // The least chunk maximum lies above the middle of a bell: as far again and again covers its lower tail.
        float range = (row.top - row.bottom) * keep.inv_t * 4 + 1e-6f;
        if (!(range < 32)) range = 32;
        width = float(BUCKETS - 1) / range;
        for (int b = 0; b < 2 * BUCKETS; ++b) amounts[b] = 0;
        alignas(64) float weight[LANES];
        alignas(64) double wide[LANES];
        alignas(64) int32_t at[LANES];
        for (int64_t i = 0; i < row.n; i += LANES) {
            const V x = load_logits(row.x + i, row.n - i), y = scaled(keep, x);
            const uint32_t mask = kept_lanes(keep, x, y, i);
            if (!mask) continue;
            store(weight, select(mask, COUNT ? set1(1.0f) : expv(y), set1(0.0f)));
            store_int(at, select(mask, index(y), set1(0.0f)));
            for (int j = 0; j < LANES; ++j) wide[j] = double(weight[j]);
            for (int j = 0; j < LANES; j += 2) {
                amounts[at[j]] += wide[j];
                amounts[BUCKETS + at[j + 1]] += wide[j + 1];
            }
        }
        for (int b = 0; b < BUCKETS; ++b) amounts[b] += amounts[BUCKETS + b];
    }
    // Candidates of buckets [first, last], in id order.
    int64_t collect(int first, int last, Candidate* list) const {
        int64_t count = 0;
        const V low = set1(float(first)), high = set1(float(last + 1));
        for (int64_t i = 0; i < row.n; i += LANES) {
            const V x = load_logits(row.x + i, row.n - i), y = scaled(keep, x), at = index(y);
            for (uint32_t mask = kept_lanes(keep, x, y, i) & mask_ge(at, low) & mask_gt(high, at); mask; mask &= mask - 1) {
                const int64_t id = i + __builtin_ctz(mask);
                list[count++] = {row.x[id], int32_t(id)};
            }
        }
        return count;
    }
};

void sort_candidates(Candidate* list, int64_t count) {
    if (!std::is_sorted(list, list + count, Before())) std::sort(list, list + count, Before());
}

// The k best in order; returns how many there are.
int64_t select_best(const Row& row, int64_t k, const Scratch& s) {
    int64_t count;
    if (k <= row.chunks) {
        count = collect(row, chunk_threshold(row, k, s.work), s.list);
    } else {
        Keep all = {row.top, 1.0f};
        Histogram h = {row, all, s.sums, 0};
        h.fill<true>();
        int b = 0;
        for (double seen = h.amounts[0]; seen < double(k) && b < BUCKETS - 1; seen += h.amounts[b]) ++b;
        count = h.collect(0, b, s.list);
    }
    if (count > k) {
        std::nth_element(s.list, s.list + k, s.list + count, Before());
        count = k;
    }
    sort_candidates(s.list, count);
    return count;
}

// 1 + candidates before (value, id).
int32_t rank_of(const float* x, int64_t n, Candidate c) {
    const V value = set1(c.value);
    int64_t better = 0;
    for (int64_t i = 0; i < n; i += LANES) {
        const V v = load_logits(x + i, n - i);
        better += __builtin_popcount(mask_gt(v, value));
        if (i < c.id) {
            uint32_t ties = mask_eq(v, value);
            if (c.id - i < LANES) ties &= (1u << (c.id - i)) - 1;
            better += __builtin_popcount(ties);
        }
    }
    return int32_t(better + 1);
}

void write_best(const Candidate* list, int64_t count, double log_total, double inv_t, int64_t k, int32_t* ids, float* logprobs) {
    for (int64_t j = 0; j < k; ++j) {
        ids[j] = j < count ? list[j].id : -1;
        logprobs[j] = j < count ? float(double(list[j].value) * inv_t - log_total) : 0.0f;
    }
}

// x * inv_t - log_total of the ids that row r chose; -inf for those that `keep` leaves out.
void write_chosen(const SamplerIO& io, int64_t r, const float* x, const Keep& keep, double inv_t, double log_total) {
    if (!io.chosen_ids) return;
    const Before before;
    for (int32_t j = io.chosen_start[r]; j < io.chosen_start[r + 1]; ++j) {
        const int32_t id = io.chosen_ids[j];
        io.chosen_logprobs[j] = NEG_INF;
        if (id < 0 || id >= io.vocab || before(keep.last, {x[id], id}) || (x[id] - keep.top) * keep.inv_t < keep.floor) continue;
        io.chosen_logprobs[j] = float(double(x[id]) * inv_t - log_total);
    }
}

// ---- edits of the distribution ----------------------------------------------------------------------------

void apply_mask(float* x, int64_t n, const uint32_t* mask) {
    const V minus_inf = set1(NEG_INF);
    for (int64_t i = 0; i < n; i += LANES) {
        const uint32_t bits = mask[i / 32] >> (i % 32) & 0xffff;
        if (bits == 0xffff) continue;
        store_upto(x + i, select(bits, load_upto(x + i, n - i), minus_inf), n - i);
    }
}

void apply_penalties(float* x, int64_t n, const int32_t* counts, const uint32_t* seen, float repetition, float presence, float frequency) {
    for (int64_t i = 0; i < n; i += LANES) {
        const int64_t m = n - i < LANES ? n - i : LANES;
        const uint32_t prompt = seen[i / 32] >> (i % 32) & 0xffff;
        int32_t any = 0;
        for (int64_t j = 0; j < m; ++j) any |= counts[i + j];
        if (!prompt && !any) continue;
        for (int64_t j = 0; j < m; ++j) {
            const int32_t count = counts[i + j];
            float v = x[i + j];
            if (count > 0 || prompt >> j & 1) v = v > 0 ? v / repetition : v * repetition;
            if (count > 0) {
                const float by_count = frequency * float(count);
                v = v - by_count;
                v = v - presence;
            }
            x[i + j] = v;
        }
    }
}

bool has_edits(const SamplerIO& io, int64_t r) {
    return io.mask_row[r] >= 0 || io.bias_start[r + 1] > io.bias_start[r] ||
           (io.penalty_row[r] >= 0 && (io.repetition[r] != 1.0f || io.presence[r] != 0.0f || io.frequency[r] != 0.0f));
}

bool allows(const SamplerIO& io, int64_t r, int32_t id) {
    const uint32_t* mask = io.masks + io.mask_row[r] * io.masks_stride;
    return mask[id / 32] >> (id % 32) & 1;
}

// Whether a row draws without its mask first, and with it only where that token is not allowed. The distribution is
// the same (rejection sampling), and for a greedy row the token; so a mask need not be made until it is known to be
// needed. Not where something is cut or edited after the mask, or log-probabilities are of what it leaves.
bool draws_first(const SamplerIO& io, int64_t r) {
    const bool cuts = io.top_k[r] > 0 || io.top_p[r] < 1 || io.min_p[r] > 0;
    return io.mask_row[r] >= 0 && io.bias_start[r + 1] == io.bias_start[r] && io.penalty_row[r] < 0 &&
           (io.temperature[r] < COLDEST || !cuts) && !(io.processed_logprobs && io.num_logprobs[r] >= 0);
}
constexpr uint64_t SECOND_DRAW = uint64_t(1) << 62;  // added to the position: the counter of the draw after that

void edit(const SamplerIO& io, int64_t r, float* x) {
    const int64_t n = io.vocab;
    if (io.mask_row[r] >= 0) apply_mask(x, n, io.masks + io.mask_row[r] * io.masks_stride);
    for (int32_t j = io.bias_start[r]; j < io.bias_start[r + 1]; ++j)
        if (io.bias_ids[j] >= 0 && io.bias_ids[j] < n) x[io.bias_ids[j]] += io.bias_values[j];
    const int64_t p = io.penalty_row[r];
    if (p >= 0 && (io.repetition[r] != 1.0f || io.presence[r] != 0.0f || io.frequency[r] != 0.0f))
        apply_penalties(x, n, io.counts + p * io.counts_stride, io.seen + p * io.seen_stride, io.repetition[r], io.presence[r], io.frequency[r]);
}

// ---- the draw ---------------------------------------------------------------------------------------------

struct Drawn {
    int32_t id;
    double log_total;   // log of the sum of kept weights, relative to top
    int64_t listed;     // candidates in scratch.list that are the whole kept set, or -1
};

int32_t first_of(const Row& row, float value) {
    for (int64_t c = 0; c < row.chunks; ++c) {
        if (row.maxima[c] != value) continue;
        for (int64_t i = c * CHUNK; i < row.n; ++i)
            if (row.x[i] == value) return int32_t(i);
    }
    return -1;
}

// Smallest head of the sorted list with at least `share` of its own or the given total.
int64_t nucleus(const Keep& keep, const Candidate* list, int64_t count, double total, double share, double before) {
    double sum = before;
    for (int64_t j = 0; j < count; ++j) {
        sum += double(exp_of((list[j].value - keep.top) * keep.inv_t));
        if (sum >= share * total) return j + 1;
    }
    return count;
}

double list_weight(const Keep& keep, const Candidate* list, int64_t count) {
    double total = 0;
    for (int64_t j = 0; j < count; ++j) total += double(exp_of((list[j].value - keep.top) * keep.inv_t));
    return total;
}

// Draws from list[0, count) in id order.
Drawn draw_listed(const Keep& keep, Candidate* list, int64_t count, double uniform) {
    std::sort(list, list + count, ById());
    const double total = list_weight(keep, list, count), target = uniform * total;
    double sum = 0;
    int32_t id = list[count - 1].id;
    for (int64_t j = 0; j < count; ++j) {
        sum += double(exp_of((list[j].value - keep.top) * keep.inv_t));
        if (sum > target) {
            id = list[j].id;
            break;
        }
    }
    return {id, std::log(total), count};
}

// Draws from all that `keep` keeps.
Drawn draw_kept(const Row& row, const Keep& keep, double uniform, const Scratch& s) {
    const double total = sum_weights(row, keep, s.sums), target = uniform * total;
    double sum = 0;
    int64_t chunk = 0, last = 0;
    for (; chunk < row.chunks; ++chunk) {
        if (s.sums[chunk] > 0) last = chunk;
        if (sum + s.sums[chunk] > target) break;
        sum += s.sums[chunk];
    }
    if (chunk == row.chunks) chunk = last;  // rounding: the last chunk that has weight
    int32_t id = -1;
    alignas(64) float weight[LANES];
    for (int64_t i = chunk * CHUNK; i < row.n && i < (chunk + 1) * CHUNK; i += LANES) {
        const V x = load_logits(row.x + i, row.n - i), y = scaled(keep, x);
        store(weight, expv(y));
        for (uint32_t mask = kept_lanes(keep, x, y, i); mask; mask &= mask - 1) {
            const int j = __builtin_ctz(mask);
            if (weight[j] <= 0) continue;
            id = int32_t(i + j);
            sum += double(weight[j]);
            if (sum > target) return {id, std::log(total), -1};
        }
    }
    return {id, std::log(total), -1};
}

// Whether the candidates from `threshold` on may weigh `share`: no more than all that their chunks hold
// (and a little, for other roundings).
bool may_reach(const Row& row, float threshold, const double* sums, double share) {
    double most = 0;
    for (int64_t c = 0; c < row.chunks; ++c) most += row.maxima[c] >= threshold ? sums[c] : 0;
    return most * 1.0001 >= share;
}

Drawn draw(const SamplerIO& io, int64_t r, uint64_t counter, const Row& row, Keep* keep, const Scratch& s) {
    const float min_p = io.min_p[r], top_p = io.top_p[r];
    const int64_t top_k = io.top_k[r];
    const double uniform = philox_uniform(io.seed[r], counter);
    if (min_p > 0) keep->floor = float(std::log(double(min_p)));
    if (top_k > 0 && top_k < row.n) {
        int64_t count = select_best(row, top_k, s);
        while (count > 1 && (s.list[count - 1].value - keep->top) * keep->inv_t < keep->floor) --count;
        if (top_p < 1) count = nucleus(*keep, s.list, count, list_weight(*keep, s.list, count), double(top_p), 0);
        keep->last = s.list[count - 1];
        return draw_listed(*keep, s.list, count, uniform);
    }
    if (top_p >= 1) return draw_kept(row, *keep, uniform, s);

    const double total = sum_weights(row, *keep, s.sums);
    const int64_t best = row.chunks < NUCLEUS_CHUNKS ? row.chunks : NUCLEUS_CHUNKS;
    const float threshold = chunk_threshold(row, best, s.work);
    int64_t count = 0;
    if (may_reach(row, threshold, s.sums, double(top_p) * total)) {
        const int64_t found = collect(row, threshold, s.list);
        for (int64_t j = 0; j < found; ++j)
            if ((s.list[j].value - keep->top) * keep->inv_t >= keep->floor) s.list[count++] = s.list[j];
        if (list_weight(*keep, s.list, count) >= double(top_p) * total) {
            sort_candidates(s.list, count);
            count = nucleus(*keep, s.list, count, total, double(top_p), 0);
            keep->last = s.list[count - 1];
            return draw_listed(*keep, s.list, count, uniform);
        }
    }
    Histogram h = {row, *keep, s.sums, 0};
    h.fill<false>();
    double before = 0;
    int b = 0, filled = 0;
    for (; b < BUCKETS; ++b) {
        if (h.amounts[b] > 0) filled = b;
        if (before + h.amounts[b] >= double(top_p) * total) break;
        before += h.amounts[b];
    }
    if (b == BUCKETS) before -= h.amounts[b = filled];  // rounding: all is kept
    count = h.collect(b, b, s.list);
    sort_candidates(s.list, count);
    const int64_t in = nucleus(*keep, s.list, count, total, double(top_p), before);
    keep->last = s.list[in - 1];
    return draw_kept(row, *keep, uniform, s);
}

// The best of what is kept, for processed logprobs.
int64_t best_kept(const Row& row, const Keep& keep, int64_t k, const Scratch& s) {
    int64_t count = select_best(row, k < row.n ? k : row.n, s);
    const Before before;
    while (count > 0 && (before(keep.last, s.list[count - 1]) || (s.list[count - 1].value - keep.top) * keep.inv_t < keep.floor)) --count;
    return count;
}

void sample_row(const SamplerIO& io, int64_t r, float* x, const float* maxima, const Scratch& s) {
    const int64_t n = io.vocab;
    const int32_t k = io.num_logprobs[r];
    io.token_ids[r] = -1, io.logprobs[r] = 0, io.ranks[r] = 0;
    int32_t* top_ids = io.top_ids + r * io.top_stride;
    float* top_logprobs = io.top_logprobs + r * io.top_stride;
    write_best(nullptr, 0, 0, 1, io.top_stride, top_ids, top_logprobs);
    if (io.chosen_ids)
        for (int32_t j = io.chosen_start[r]; j < io.chosen_start[r + 1]; ++j) io.chosen_logprobs[j] = NEG_INF;

    Row row = maxima ? row_of(x, n, maxima) : scan(x, n, s.maxima);
    if (!row.ok) return;
    const bool raw = k >= 0 && !io.processed_logprobs;
    bool edits = has_edits(io, r);
    double log_total = 0;
    if (raw) {
        if (!io.reports_logits) log_total = log_sum_exp(row);
        if (k > 0) write_best(s.list, select_best(row, k < n ? k : n, s), log_total, 1, k < io.top_stride ? k : io.top_stride, top_ids, top_logprobs);
        write_chosen(io, r, x, {row.top, 1.0f}, 1, log_total);
    }
    const bool greedy = io.temperature[r] < COLDEST;
    uint64_t counter = uint64_t(io.position[r]);
    Keep keep;
    int32_t id = -1;
    double kept_log_total = 0;
    const auto draw_once = [&] {
        keep = {row.top, greedy ? 1.0f : 1.0f / io.temperature[r]};
        if (greedy) {
            id = first_of(row, row.top);
            if (k >= 0 && !raw && !io.reports_logits) kept_log_total = log_sum_exp(row) - double(row.top);
        } else {
            const Drawn drawn = draw(io, r, counter, row, &keep, s);
            id = drawn.id, kept_log_total = drawn.log_total;
        }
    };
    if (draws_first(io, r)) {
        if (!io.refused) draw_once();
        if (id >= 0 && allows(io, r, id)) edits = false;
        counter += SECOND_DRAW;
    }
    if (edits) {
        if (raw) std::memcpy(s.raw, x, size_t(n) * 4);
        edit(io, r, x);
        row = scan(x, n, s.maxima);
        if (!row.ok) return;
    }
    if (edits || id < 0) draw_once();
    if (id < 0) return;
    io.token_ids[r] = id;
    if (raw) {
        const float* logits = edits ? s.raw : x;
        io.logprobs[r] = float(double(logits[id]) - log_total);
        io.ranks[r] = rank_of(logits, n, {logits[id], id});
    } else if (k >= 0) {
        const double inv_t = double(keep.inv_t), shift = io.reports_logits ? 0 : double(row.top) * inv_t + kept_log_total;
        io.logprobs[r] = float(double(x[id]) * inv_t - shift);
        io.ranks[r] = rank_of(x, n, {x[id], id});
        if (k > 0) write_best(s.list, best_kept(row, keep, k, s), shift, inv_t, k < io.top_stride ? k : io.top_stride, top_ids, top_logprobs);
        write_chosen(io, r, x, keep, inv_t, shift);
    }
}

void sample_rows(const SamplerIO& io, const Logits& logits, int64_t first, int64_t rows, const Ctx& ctx) {
    const Share mine = share(rows, ctx.tid, ctx.n);
    const Scratch s = scratch_of(ctx, io.vocab);
    for (int64_t i = mine.first; i < mine.last; ++i) sample_row(io, first + i, logits.row(i), logits.maxima_of(i), s);
}

void score_rows(const SamplerIO& io, const Logits& logits, int64_t first, int64_t rows, const Ctx& ctx) {
    const Share mine = share(rows, ctx.tid, ctx.n);
    const Scratch s = scratch_of(ctx, io.vocab);
    for (int64_t i = mine.first; i < mine.last; ++i) {
        const int64_t p = first + i, k = io.score_top;
        const float *x = logits.row(i), *maxima = logits.maxima_of(i);
        const int32_t target = io.targets[p];
        int32_t* ids = io.score_top_ids + p * k;
        float* logprobs = io.score_top_logprobs + p * k;
        io.score_logprobs[p] = NEG_INF, io.score_ranks[p] = 0;
        write_best(nullptr, 0, 0, 1, k, ids, logprobs);
        const Row row = maxima ? row_of(x, io.vocab, maxima) : scan(x, io.vocab, s.maxima);
        if (!row.ok || target < 0 || target >= io.vocab) continue;
        const double log_total = io.reports_logits ? 0 : log_sum_exp(row);
        io.score_logprobs[p] = float(double(x[target]) - log_total);
        io.score_ranks[p] = rank_of(x, io.vocab, {x[target], target});
        if (k > 0) write_best(s.list, select_best(row, k < row.n ? k : row.n, s), log_total, 1, k, ids, logprobs);
    }
}

void scan_columns(const Logits& logits, int64_t rows, int64_t vocab, int64_t first, int64_t last) {
    for (int64_t i = 0; i < rows; ++i)
        scan_chunks(logits.row(i), vocab, first / CHUNK, (last + CHUNK - 1) / CHUNK, logits.maxima + i * logits.maxima_stride);
}

}  // namespace

const SamplerKernels& sampler_kernels() {
    static constexpr SamplerKernels table = {scan_columns, sample_rows, score_rows};
    return table;
}

}  // namespace octavo::OCTAVO_ISA
