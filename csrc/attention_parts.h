// What the kernels of attention share: paged causal attention with grouped heads, sliding window, soft-cap and sinks.
//
// Keys are taken in splits of 512 positions, aligned to position 0. A split gives every query row (max, sum,
// weighted V) with the order of all additions fixed by position alone; splits are merged in order. Masked keys
// have probability exactly 0 and leave max, sum and accumulators as they are, so a row's bits depend neither
// on which queries share its tile nor on how work is shared out over threads: decode and prefill agree.
//
// A *tile* is some consecutive query tokens of one request; its rows are (token, head of one KV head). A *unit*
// is (tile, KV head, split). Units are laid out in one line and cut into shares of equal cost; where a cut falls
// inside a tile, later threads leave their splits in AttendSpace and the thread that has the first split
// of a head merges them after a barrier. How a unit is computed is the engine's: a class E with
//
//     PER        elements of the cache in 4 bytes
//     ROWS       rows of a tile; ROWS_STEP: a result has a multiple of so many
//     unit(...)  one unit; `next_tile` as in find_ahead()
//
// Requests of one new token each that follow each other in the step and have the same blocks for their first splits
// (a shared prefix) are a *party*: those splits are computed once for all of them, as units of a tile of many rows, before
// the rest. A row's bits are the same as alone, since neither its tile nor the place of its result enters them.
//
// An object of it lives as long as the op. Included by kernel files only.
#pragma once
#include <cmath>

#include "isa.h"
#include "ops.h"
#include "lanes.h"

namespace octavo::OCTAVO_ISA {
namespace {

#ifndef OCTAVO_ATTEND_SPLIT
#define OCTAVO_ATTEND_SPLIT 512
#endif
constexpr int SPLIT = OCTAVO_ATTEND_SPLIT;
constexpr int SPLIT_GROUPS = SPLIT / LANES;
constexpr int S_STRIDE = SPLIT + LANES;  // floats; not a power of two, so that rows fall into different cache sets
constexpr float LOG2E = 1.4426950408889634f;
const float NEG_INF = -__builtin_inff();

// ---- the plan of a step ---------------------------------------------------------------------------------

struct Shape {
    int group, index, kv_heads, head_dim, heads, window, per_kv;  // per_kv: query heads of a KV head
    int queries;                                                   // most query tokens of a tile
    int max_rows;                                                  // of a tile, and of a result
    float scale, cap;
    int64_t slot_floats;  // a result: [rows][head_dim] V sums, [rows] maxima, [rows] sums
    int rows() const { return max_rows; }
};

// E is the engine that computes units; it says how many rows a tile has, and what count of rows divides a result's.
template <class E>
Shape shape_of(const Op& op) {
    Shape s;
    s.group = op.i[KV_GROUP], s.index = op.i[KV_INDEX], s.kv_heads = op.i[KV_HEADS], s.head_dim = op.i[KV_HEAD_DIM];
    s.heads = op.i[KV_FIRST_FREE], s.window = op.i[KV_FIRST_FREE + 1];
    s.per_kv = s.heads / s.kv_heads;
    s.queries = s.per_kv >= E::ROWS ? 1 : E::ROWS / s.per_kv;
    s.max_rows = (s.queries * s.per_kv + E::ROWS_STEP - 1) / E::ROWS_STEP * E::ROWS_STEP;
    s.cap = op.f[1];
    s.scale = s.cap > 0 ? op.f[0] / s.cap : op.f[0] * LOG2E;  // scores come out in units of cap, or of log 2
    s.slot_floats = (int64_t(s.rows()) * (s.head_dim + 2) + LANES - 1) / LANES * LANES;
    return s;
}

struct Tile {
    int64_t row = 0;              // request
    int token = 0, queries = 0;   // first token in the step, tokens
    int first_group = 0, last_group = 0;  // of 16 keys, inclusive: all that any query of the tile sees
    int first_split = 0, splits = 0;  // but those of the party
    int64_t cost = 0;             // of one KV head
    int party_splits = 0, member = 0;
    int64_t party_units = 0;      // units of parties before this one
};

// Cost of one group of 16 keys: reading it, and the arithmetic of each row.
OCTAVO_INLINE int64_t group_cost(const Shape& s, int queries) { return 4 + int64_t(queries) * s.per_kv; }

OCTAVO_INLINE int first_key(const Shape& s, int position) {
    return s.window > 0 && position >= s.window ? position - s.window + 1 : 0;
}

// The place of a token in its request's KV. (Step::positions serves rope, and may differ.)
OCTAVO_INLINE int place_of(const Step& step, int64_t row, int token) {
    return step.context_lens[row] + token - step.row_starts[row];
}

// Requests [first, end), which share `splits` splits if they are more than one.
struct Party {
    int64_t first = 0, end = 0;
    int splits = 0;
};

OCTAVO_INLINE bool has_one_token(const Step& step, int64_t row) { return step.row_starts[row + 1] - step.row_starts[row] == 1; }

// Splits in front that both requests see whole and have in the same blocks.
OCTAVO_INLINE int common_splits(const Shape& s, const Step& step, int64_t a, int64_t b) {
    const int32_t *tables = step.block_tables + s.group * step.group_stride;
    const int32_t *x = tables + a * step.table_width, *y = tables + b * step.table_width;
    const int shorter = step.context_lens[a] < step.context_lens[b] ? step.context_lens[a] : step.context_lens[b];
    int splits = 0;
    for (int block = 0; (splits + 1) * SPLIT <= shorter; ++splits)
        for (; block * step.block_size < (splits + 1) * SPLIT; ++block)
            if (x[block] != y[block]) return splits;
    return splits;
}

OCTAVO_INLINE Party party_at(const Shape& s, const Step& step, int64_t row) {
    Party p = {row, row + 1, 0};
    if (s.window > 0 || !has_one_token(step, row)) return p;
    for (; p.end < step.R && p.end - row < s.queries && has_one_token(step, p.end); ++p.end) {
        const int common = common_splits(s, step, row, p.end);
        if (common < 1 || common < p.splits) break;
        if (!p.splits) p.splits = common;
    }
    return p;
}

OCTAVO_INLINE Tile tile_at(const Shape& s, const Step& step, int64_t row, int token, const Party& party, int64_t party_units) {
    Tile t;
    t.row = row, t.token = token;
    t.party_splits = party.splits, t.member = int(row - party.first), t.party_units = party_units;
    const int left = step.row_starts[row + 1] - token;
    t.queries = left < s.queries ? left : s.queries;
    t.first_group = first_key(s, place_of(step, row, token)) / LANES;
    if (party.splits) t.first_group = party.splits * SPLIT_GROUPS;  // a party has no window
    t.last_group = place_of(step, row, token + t.queries - 1) / LANES;
    t.first_split = t.first_group / SPLIT_GROUPS;
    t.splits = t.last_group / SPLIT_GROUPS - t.first_split + 1;
    t.cost = (t.last_group - t.first_group + 1) * group_cost(s, t.queries);
    return t;
}

// Units of a tile in line. One query token: all KV heads of a split, then the next split (their blocks are
// neighbours in memory). More: all splits of a head, then the next head (its state stays in the cache).
struct Unit {
    int head, split;
};
OCTAVO_INLINE Unit unit_at(const Shape& s, const Tile& t, int64_t u) {
    if (t.queries == 1) return {int(u % s.kv_heads), t.first_split + int(u / s.kv_heads)};
    return {int(u / t.splits), t.first_split + int(u % t.splits)};
}

OCTAVO_INLINE void split_range(const Tile& t, int split, int* first, int* count) {
    const int a = split * SPLIT_GROUPS, b = a + SPLIT_GROUPS - 1;
    *first = t.first_group > a ? t.first_group : a;
    *count = (t.last_group < b ? t.last_group : b) - *first + 1;
}

OCTAVO_INLINE int64_t unit_cost(const Shape& s, const Tile& t, int split) {
    int first, count;
    split_range(t, split, &first, &count);
    return count * group_cost(s, t.queries);
}

// A unit belongs to the thread in whose share of the total its middle lies.
OCTAVO_INLINE int owner_of(int64_t start, int64_t cost, int64_t total, int threads) {
    return int((2 * start + cost) * threads / (2 * total));
}

// ---- one unit -------------------------------------------------------------------------------------------

struct Result {
    float* sums;  // [rows][head_dim]
    float* maxima;
    float* totals;
};
OCTAVO_INLINE Result result_at(const Shape& s, float* slot) {
    float* maxima = slot + int64_t(s.rows()) * s.head_dim;
    return {slot, maxima, maxima + s.rows()};
}

// Where the keys and values of a unit lie, by groups of 16 positions.
struct Lines {
    int first_group, groups;
    int64_t half;  // bytes of K, or of V, of a head in a block
    const char *k[SPLIT_GROUPS], *v[SPLIT_GROUPS];
};
template <class E>
OCTAVO_INLINE void find_lines(const Step& step, const Shape& s, const Tile& t, Unit unit, Lines* lines) {
    const int head_dim = s.head_dim, block_size = step.block_size;
    split_range(t, unit.split, &lines->first_group, &lines->groups);
    lines->half = int64_t(block_size) * head_dim * (4 / E::PER);
    const int32_t* table = step.block_tables + s.group * step.group_stride + t.row * step.table_width;
    const char* head_base = step.kv + (int64_t(s.index) * s.kv_heads + unit.head) * 2 * lines->half;
    for (int g = 0; g < lines->groups; ++g) {
        const int position = (lines->first_group + g) * LANES, slot = position % block_size;
        const char* block = head_base + table[position / block_size] * step.block_bytes;
        lines->k[g] = block + int64_t(slot) * 4;
        lines->v[g] = block + lines->half + int64_t(slot) * head_dim * (4 / E::PER);
    }
}

// What a unit of one query token fetches ahead: it waits for memory, so V is fetched while K is read, and while V is
// read K of the unit to follow. `next_tile` is the tile that this thread takes up after a unit that ends a line of
// heads, or null.
struct Ahead {
    const char *v[SPLIT_GROUPS], *k[SPLIT_GROUPS];  // by groups of this unit
    bool has_k = false;
};
template <class E>
OCTAVO_INLINE void find_ahead(const Step& step, const Shape& s, const Tile& t, Unit unit, const Tile* next_tile, const Lines& lines, Ahead* ahead) {
    const int groups = lines.groups;
    for (int g = 0; g < groups; ++g) ahead->v[g] = lines.k[g] + lines.half;
    if (unit.head + 1 < s.kv_heads) {
        for (int g = 0; g < groups; ++g) ahead->k[g] = lines.v[g] + lines.half;
        ahead->has_k = true;
    } else if (unit.split + 1 < t.first_split + t.splits || next_tile) {
        Lines following;
        const bool same = unit.split + 1 < t.first_split + t.splits;
        find_lines<E>(step, s, same ? t : *next_tile, {0, same ? unit.split + 1 : next_tile->first_split}, &following);
        for (int g = 0; g < groups; ++g) ahead->k[g] = following.v[g < following.groups ? g : following.groups - 1] - lines.half;
        ahead->has_k = true;
    }
}

// ---- merging splits -------------------------------------------------------------------------------------

OCTAVO_INLINE float exp2_of(float x) {
    alignas(64) float t[LANES];
    store(t, exp2v(set1(x)));
    return t[0];
}

// state = state + part, row by row. A row that sees nothing of the part is left alone.
void merge(const Shape& s, const Tile& t, Result state, Result part) {
    const int rows = t.queries * s.per_kv;
    alignas(64) float top[LANES], old_factor[LANES], part_factor[LANES];
    for (int r = 0; r < rows; ++r) {
        const int lane = r % LANES;
        if (lane == 0) {  // the factors of 16 rows at once
            const V old = load_upto(state.maxima + r, rows - r), m = load_upto(part.maxima + r, rows - r), higher = max(old, m);
            store(top, higher);
            store(old_factor, exp2v(old - higher));
            store(part_factor, exp2v(m - higher));
        }
        if (part.maxima[r] == NEG_INF) continue;
        float* to = state.sums + int64_t(r) * s.head_dim;
        const float* from = part.sums + int64_t(r) * s.head_dim;
        if (state.maxima[r] == NEG_INF) {
            std::memcpy(to, from, size_t(s.head_dim) * 4);
            state.maxima[r] = part.maxima[r], state.totals[r] = part.totals[r];
            continue;
        }
        const V a = set1(old_factor[lane]), b = set1(part_factor[lane]);
        for (int d = 0; d < s.head_dim; d += LANES) store(to + d, fma(load(from + d), b, load(to + d) * a));
        const float x = state.totals[r] * old_factor[lane], y = part.totals[r] * part_factor[lane];
        state.totals[r] = x + y;
        state.maxima[r] = top[lane];
    }
}

// Divides by the sum (with the head's sink, if it has one) and writes the output.
void finish(const Op& op, const Shape& s, const Tile& t, int head, Result state) {
    const auto* sinks = static_cast<const float*>(op.w[0]);
    const int rows = t.queries * s.per_kv;
    for (int r = 0; r < rows; ++r) {
        const int h = head * s.per_kv + r % s.per_kv;
        float factor = 1.0f, total = state.totals[r];
        if (sinks) {
            const float sink = sinks[h] * LOG2E, m = state.maxima[r], top = sink > m ? sink : m;
            factor = exp2_of(m - top);
            const float x = total * factor;
            total = x + exp2_of(sink - top);
        }
        const V inv = set1(factor / total), zero = set1(0.0f);
        const float* from = state.sums + int64_t(r) * s.head_dim;
        float* y = op.out[0].f32(t.token + r / s.per_kv) + int64_t(h) * s.head_dim;
        // + 0 turns -0 into 0: the only trace that masked keys could leave.
        for (int d = 0; d < s.head_dim; d += LANES) store(y + d, load(from + d) * inv + zero);
    }
}

// ---- the op ---------------------------------------------------------------------------------------------

struct Walk {  // over the tiles of a step, in line
    const Shape& s;
    const Step& step;
    int64_t row = 0;
    int token = 0;
    Party party = {};
    int64_t units = 0;  // of parties before this one
    // The number of units of all parties, once next() has returned false.
    int64_t party_units() const { return units + int64_t(party.splits) * s.kv_heads; }
    bool next(Tile* t) {
        while (row < step.R && token >= step.row_starts[row + 1]) ++row;
        if (row >= step.R) return false;
        if (row >= party.end) units = party_units(), party = party_at(s, step, row);
        *t = tile_at(s, step, row, token, party, units);
        token += t->queries;
        return true;
    }
};

// What all members of a party see, computed once: a tile of one row a member and head, in the party's own splits.
OCTAVO_INLINE Tile party_tile(const Step& step, const Party& party) {
    Tile t;
    t.row = party.first, t.token = step.row_starts[party.first], t.queries = int(party.end - party.first);
    t.last_group = party.splits * SPLIT_GROUPS - 1;
    t.splits = party.splits;
    return t;
}

// Computes this thread's share of the units of all parties into its own part of `space`.
template <class E>
void attend_parties(E& engine, const Op& op, const Step& step, const Ctx& ctx, const Shape& s, AttendSpace* space, int64_t total) {
    const Share mine = share(total, ctx.tid, ctx.n);
    if (mine.first >= mine.last) return;
    auto* slots = reinterpret_cast<float*>(space->parties(ctx.tid, size_t((mine.last - mine.first) * s.slot_floats) * 4));
    int64_t u = 0;
    Party party;
    for (int64_t row = 0; row < step.R && u < mine.last; row = party.end) {
        party = party_at(s, step, row);
        const Tile t = party_tile(step, party);
        for (int64_t i = 0; i < int64_t(party.splits) * s.kv_heads; ++i, ++u) {
            if (u < mine.first || u >= mine.last) continue;
            engine.unit(op, step, s, t, unit_at(s, t, i), nullptr, ctx.scratch + s.slot_floats * 4, result_at(s, slots + (u - mine.first) * s.slot_floats));
        }
    }
}

// The state of a head of tile t, a member of a party, after the party's splits.
void begin_state(const Shape& s, const Ctx& ctx, const AttendSpace& space, int64_t total, const Tile& t, int head, Result state) {
    const int rows = s.per_kv, from = t.member * s.per_kv;
    int owner = 0;
    for (int split = 0; split < t.party_splits; ++split) {
        const int64_t u = t.party_units + int64_t(head) * t.party_splits + split;
        while (u >= share(total, owner, ctx.n).last) ++owner;
        const char* slots = space.parties_of(owner);
        auto* slot = reinterpret_cast<float*>(const_cast<char*>(slots)) + (u - share(total, owner, ctx.n).first) * s.slot_floats;
        const Result all = result_at(s, slot);
        const Result part = {all.sums + int64_t(from) * s.head_dim, all.maxima + from, all.totals + from};
        if (split > 0) {
            merge(s, t, state, part);
            continue;
        }
        std::memcpy(state.sums, part.sums, size_t(rows) * s.head_dim * 4);
        std::memcpy(state.maxima, part.maxima, size_t(rows) * 4);
        std::memcpy(state.totals, part.totals, size_t(rows) * 4);
    }
}

template <class E>
void attend_as(const Op& op, const Step& step, const Ctx& ctx) {
    const Shape s = shape_of<E>(op);
    E engine;
    auto* space = const_cast<AttendSpace*>(static_cast<const AttendSpace*>(op.w[1]));
    int64_t total = 0;
    Tile t;
    Walk all{s, step};
    while (all.next(&t)) total += t.cost * s.kv_heads;
    if (total == 0) return;
    const int64_t party_units = all.party_units();
    if (party_units > 0) {
        attend_parties(engine, op, step, ctx, s, space, party_units);
        ctx.barrier();
    }
    const int64_t state_floats = s.slot_floats * s.kv_heads;
    float* scratch_slot = reinterpret_cast<float*>(ctx.scratch);  // the unit at hand
    char* scratch = ctx.scratch + s.slot_floats * 4;
    float* own = reinterpret_cast<float*>(space->own(ctx.tid, size_t(state_floats + s.slot_floats) * 4));

    Tile open;               // my last tile, if other threads have splits of my heads
    int64_t open_start = 0;
    bool has_open = false, shared_out = false;
    int64_t start = 0;       // cost of all tiles before
    for (Walk walk{s, step}; walk.next(&t); start += t.cost * s.kv_heads) {
        const int64_t cost = t.cost * s.kv_heads, units = int64_t(t.splits) * s.kv_heads;
        const int first_owner = owner_of(start, unit_cost(s, t, t.first_split), total, ctx.n);
        const int last_owner = owner_of(start + cost - unit_cost(s, t, t.first_split + t.splits - 1),
                                        unit_cost(s, t, t.first_split + t.splits - 1), total, ctx.n);
        if (first_owner != last_owner) shared_out = true;
        if (ctx.tid < first_owner || ctx.tid > last_owner) continue;
        if (first_owner < ctx.tid) {  // my first tile: room for splits of heads that others finish
            own = reinterpret_cast<float*>(space->own(ctx.tid, size_t(state_floats + units * s.slot_floats) * 4));
        }
        Tile following;
        Walk peek = walk;
        const Tile* next_tile = t.queries == 1 && ctx.tid == last_owner && peek.next(&following) ? &following : nullptr;
        int64_t at = start, my_first = -1;
        bool mine[ATTEND_MAX_KV_HEADS] = {};  // heads whose first split is mine
        bool unfinished = false;
        for (int64_t u = 0; u < units; ++u) {
            const Unit unit = unit_at(s, t, u);
            const int64_t c = unit_cost(s, t, unit.split);
            const int owner = owner_of(at, c, total, ctx.n);
            at += c;
            if (owner != ctx.tid) {
                if (mine[unit.head]) unfinished = true;
                continue;
            }
            if (my_first < 0) my_first = u;
            if (unit.split == t.first_split) mine[unit.head] = true;
            if (!mine[unit.head]) {
                engine.unit(op, step, s, t, unit, next_tile, scratch, result_at(s, own + state_floats + (u - my_first) * s.slot_floats));
                continue;
            }
            const Result state = result_at(s, own + unit.head * s.slot_floats), part = result_at(s, scratch_slot);
            if (unit.split == t.first_split && t.party_splits > 0) begin_state(s, ctx, *space, party_units, t, unit.head, state);
            if (unit.split == t.first_split && t.party_splits == 0) {
                engine.unit(op, step, s, t, unit, next_tile, scratch, state);
            } else {
                engine.unit(op, step, s, t, unit, next_tile, scratch, part);
                merge(s, t, state, part);
            }
            if (unit.split == t.first_split + t.splits - 1) finish(op, s, t, unit.head, state);
        }
        if (unfinished) open = t, open_start = start, has_open = true;
    }
    if (!shared_out) return;  // the same for all threads
    ctx.barrier();
    if (!has_open) return;

    const int64_t units = int64_t(open.splits) * s.kv_heads;
    int64_t at = open_start, first_of_owner = 0;
    int last_owner = -1;
    bool mine[ATTEND_MAX_KV_HEADS] = {};
    for (int64_t u = 0; u < units; ++u) {
        const Unit unit = unit_at(s, open, u);
        const int64_t c = unit_cost(s, open, unit.split);
        const int owner = owner_of(at, c, total, ctx.n);
        at += c;
        if (owner != last_owner) last_owner = owner, first_of_owner = u;
        if (owner == ctx.tid) {
            if (unit.split == open.first_split) mine[unit.head] = true;
            continue;
        }
        if (!mine[unit.head]) continue;
        auto* slot = reinterpret_cast<float*>(const_cast<char*>(space->of(owner))) + state_floats + (u - first_of_owner) * s.slot_floats;
        const Result state = result_at(s, own + unit.head * s.slot_floats);
        merge(s, open, state, result_at(s, slot));
        if (unit.split == open.first_split + open.splits - 1) finish(op, s, open, unit.head, state);
    }
}

}  // namespace
}  // namespace octavo::OCTAVO_ISA
