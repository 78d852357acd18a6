#include "pack.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "memory.h"

namespace octavo {

namespace {

constexpr int64_t MAX_ROWS = int64_t(1) << 40, MAX_COLS = int64_t(1) << 32;
constexpr const char* FORMAT_NAMES[NUM_FORMATS] = {"f32", "f16", "bf16", "w8", "w4"};

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

void check(const Part& p) {
    const TypeInfo& info = type_info(p.type);
    const std::string what = std::string(info.name) + " [" + std::to_string(p.rows) + ", " + std::to_string(p.cols) + "]";
    if (p.rows < 1 || p.cols < 1) refuse("a matrix needs at least one row and one column, not " + what);
    if (p.rows > MAX_ROWS || p.cols > MAX_COLS) refuse("no matrix is as large as " + what);
    const int64_t stride = row_bytes(p.type, p.cols);
    int64_t highest = p.rows;
    if (p.order) {
        if (int64_t(p.order_size) != p.rows)
            refuse("the row order of " + what + " has " + std::to_string(p.order_size) + " entries");
        for (int64_t i = 0; i < p.rows; i++) {
            if (p.order[i] < 0) refuse("the row order of " + what + " has a negative entry");
            highest = std::max(highest, int64_t(p.order[i]) + 1);
        }
    }
    if (highest > p.rows) refuse("the row order of " + what + " names row " + std::to_string(highest - 1));
    if (uint64_t(p.bytes) != uint64_t(stride) * uint64_t(p.rows))
        refuse(what + " takes " + std::to_string(stride * p.rows) + " bytes, but " + std::to_string(p.bytes) + " were given");
}

// Runs body(i) for i in [0, n) on up to `num_threads` threads; the first exception comes out.
template <class Body>
void in_parallel(int64_t n, int num_threads, Body body) {
    const int threads = int(std::min<int64_t>(std::max(num_threads, 1), n));
    std::atomic<int64_t> next{0};
    std::exception_ptr failure;
    std::mutex mutex;
    auto work = [&] {
        try {
            for (int64_t i; (i = next.fetch_add(1)) < n;) body(i);
        } catch (...) {
            std::lock_guard<std::mutex> lock(mutex);
            if (!failure) failure = std::current_exception();
            next = n;
        }
    };
    std::vector<std::thread> others;
    for (int t = 1; t < threads; t++) others.emplace_back(work);
    work();
    for (auto& t : others) t.join();
    if (failure) std::rethrow_exception(failure);
}

// Row `index` of the packed matrix, counted in lanes of block order; null for padding.
struct RowSource {
    const Part* part = nullptr;
    const uint8_t* row = nullptr;
};

RowSource find_row(const std::vector<Part>& parts, bool interleave, int64_t block, int lane) {
    int64_t index;
    size_t p = 0;
    if (interleave) {
        p = lane / 16;
        index = block * 16 + lane % 16;
        if (index >= parts[p].rows) return {};
    } else {
        index = block * BLOCK_COLS + lane;
        while (p < parts.size() && index >= parts[p].rows) index -= parts[p++].rows;
        if (p == parts.size()) return {};
    }
    const Part& part = parts[p];
    const int64_t at = part.order ? part.order[index] : index;
    return {&part, part.data + at * row_bytes(part.type, part.cols)};
}

// One group of one row on its lattice. w8: q holds byte = value / scale + 128. w4: q holds the nibbles.
struct Lattice {
    alignas(8) uint8_t q[GROUP];
    uint16_t scale = 0, minimum = 0;
};

uint16_t u16_at(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return v;
}

void nibbles(const uint8_t* from, uint8_t* q) {
    for (int i = 0; i < 16; i++) {
        q[i] = from[i] & 15;
        q[i + 16] = from[i] >> 4;
    }
}

// Types whose blocks of 32 are on w8's lattice.
bool direct_w8(Type t) { return t == TYPE_Q8_0 || t == TYPE_Q5_0 || t == TYPE_Q4_0 || t == TYPE_IQ4_NL; }
bool direct_w4(Type t) { return t == TYPE_Q4_0 || t == TYPE_Q4_1 || t == TYPE_Q4_K; }

constexpr int IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

void lattice_w8(Type t, const uint8_t* row, int64_t group, Lattice& out) {
    const uint8_t* p = row + group * type_info(t).bytes;
    out.scale = u16_at(p);
    switch (t) {
        case TYPE_Q8_0:
            for (int i = 0; i < GROUP; i++) out.q[i] = p[2 + i] ^ 0x80;
            break;
        case TYPE_Q4_0:
            nibbles(p + 2, out.q);
            for (int i = 0; i < GROUP; i++) out.q[i] = uint8_t(out.q[i] + 120);
            break;
        case TYPE_Q5_0: {
            uint32_t high;
            std::memcpy(&high, p + 2, 4);
            nibbles(p + 6, out.q);
            for (int i = 0; i < GROUP; i++) out.q[i] = uint8_t((out.q[i] | ((high >> i) & 1) << 4) + 112);
            break;
        }
        default:  // IQ4_NL
            nibbles(p + 2, out.q);
            for (int i = 0; i < GROUP; i++) out.q[i] = uint8_t(IQ4_VALUES[out.q[i]] + 128);
    }
}

void lattice_w4(Type t, const uint8_t* row, int64_t group, Lattice& out) {
    if (t == TYPE_Q4_K) {
        const uint8_t* p = row + group / 8 * 144;
        const int g = int(group % 8);
        const uint8_t* s = p + 4;
        const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
        const int minimum = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | (s[g] >> 6) << 4;
        out.scale = f32_to_f16(f16_to_f32(u16_at(p)) * float(scale));
        out.minimum = f32_to_f16(-(f16_to_f32(u16_at(p + 2)) * float(minimum)));
        const uint8_t* from = p + 16 + g / 2 * 32;
        for (int i = 0; i < GROUP; i++) out.q[i] = g % 2 ? from[i] >> 4 : from[i] & 15;
        return;
    }
    const uint8_t* p = row + group * type_info(t).bytes;
    out.scale = u16_at(p);
    if (t == TYPE_Q4_1) {
        out.minimum = u16_at(p + 2);
        nibbles(p + 4, out.q);
        return;
    }
    const float scale = f16_to_f32(out.scale);  // Q4_0: nibble - 8 becomes a minimum of -8 scales, exact in f16
    out.minimum = f32_to_f16(-8.0f * scale);
    if (std::abs(scale) > 8188.0f && std::isfinite(scale))
        refuse("a Q4_0 block has a scale of " + std::to_string(scale) + ", too large for w4: pack this matrix as w8 or bf16");
    nibbles(p + 2, out.q);
}

// The nearest whole number (ties to even) of 0 <= |x| < 2^22, as the low bits of x + 1.5 * 2^23.
int nearest(float x) {
    const float shifted = x + MAGIC;
    int32_t bits;
    std::memcpy(&bits, &shifted, 4);
    return bits - MAGIC_BITS;
}

float inverse(float scale) { return scale > 0 && std::isfinite(scale) ? 1.0f / scale : 0.0f; }

// Symmetric, 127 steps to each side; the steps are those of the scale as f16 holds it.
void quantise_w8(const float* x, Lattice& out) {
    int32_t largest = 0;  // magnitudes order like their bits, and a maximum of integers vectorises
    for (int i = 0; i < GROUP; i++) {
        int32_t bits;
        std::memcpy(&bits, x + i, 4);
        largest = std::max(largest, bits & 0x7fffffff);
    }
    float amax;
    std::memcpy(&amax, &largest, 4);
    out.scale = f32_to_f16(amax / 127.0f);
    const float steps = inverse(f16_to_f32(out.scale));
    for (int i = 0; i < GROUP; i++) {
        const float step = x[i] * steps;
        const float capped = step > 127.0f ? 127.0f : step;
        out.q[i] = uint8_t(nearest(capped > -127.0f ? capped : -127.0f) + 128);
    }
}

// Affine between the smallest and the largest value.
void quantise_w4(const float* x, Lattice& out) {
    float low = x[0], high = x[0];
    for (int i = 1; i < GROUP; i++) low = std::min(low, x[i]), high = std::max(high, x[i]);
    out.minimum = f32_to_f16(low);
    const float minimum = f16_to_f32(out.minimum);
    out.scale = f32_to_f16((high - minimum) / 15.0f);
    const float steps = inverse(f16_to_f32(out.scale));
    for (int i = 0; i < GROUP; i++) out.q[i] = uint8_t(nearest(std::min(15.0f, std::max(0.0f, (x[i] - minimum) * steps))));
}

void put_w8(char* record, int lane, const Lattice& l) {
    std::memcpy(record + 2 * lane, &l.scale, 2);
    for (int quad = 0; quad < 8; quad++) std::memcpy(record + 64 + quad * 128 + lane * 4, l.q + 4 * quad, 4);
}

void put_w4(char* record, int lane, const Lattice& l) {
    std::memcpy(record + 2 * lane, &l.scale, 2);
    std::memcpy(record + 64 + 2 * lane, &l.minimum, 2);
    for (int pair = 0; pair < 4; pair++) {
        uint32_t low, high;
        std::memcpy(&low, l.q + 8 * pair, 4);
        std::memcpy(&high, l.q + 8 * pair + 4, 4);
        low |= high << 4;
        std::memcpy(record + 128 + pair * 128 + lane * 4, &low, 4);
    }
}

void put_floats(Format f, char* block, int lane, const float* row, int64_t cols) {
    if (f == FMT_F32) {
        float* to = reinterpret_cast<float*>(block) + lane;
        for (int64_t k = 0; k < cols; k++) to[k * BLOCK_COLS] = row[k];
    } else if (f == FMT_F16) {
        uint16_t* to = reinterpret_cast<uint16_t*>(block) + lane;
        for (int64_t k = 0; k < cols; k++) to[k * BLOCK_COLS] = f32_to_f16(row[k]);
    } else {
        uint16_t* to = reinterpret_cast<uint16_t*>(block) + 2 * lane;
        for (int64_t k = 0; k < cols; k++) to[k / 2 * 2 * BLOCK_COLS + k % 2] = f32_to_bf16(row[k]);
    }
}

// F16 as f16 and BF16 as bf16: bits move, NaNs and subnormals included.
void put_bits(Format f, char* block, int lane, const uint8_t* row, int64_t cols) {
    uint16_t* to = reinterpret_cast<uint16_t*>(block) + (f == FMT_F16 ? lane : 2 * lane);
    for (int64_t k = 0; k < cols; k++) to[f == FMT_F16 ? k * BLOCK_COLS : k / 2 * 2 * BLOCK_COLS + k % 2] = u16_at(row + 2 * k);
}

void pack_row(const Weight& w, char* block, int lane, const RowSource& source, std::vector<float>& values) {
    const Type t = source.part->type;
    const bool bits = (w.format == FMT_F16 && t == TYPE_F16) || (w.format == FMT_BF16 && t == TYPE_BF16);
    if (bits) return put_bits(w.format, block, lane, source.row, w.cols);
    const bool direct = (w.format == FMT_W8 && direct_w8(t)) || (w.format == FMT_W4 && direct_w4(t));
    if (!direct) {
        values.resize(size_t(w.groups) * GROUP);
        dequant_row(t, source.row, values.data(), w.cols);
        std::fill(values.begin() + w.cols, values.end(), 0.0f);
    }
    if (w.format != FMT_W8 && w.format != FMT_W4) return put_floats(w.format, block, lane, values.data(), w.cols);
    Lattice l;
    for (int64_t g = 0; g < w.groups; g++) {
        char* record = block + g * group_bytes(w.format);
        if (w.format == FMT_W8) {
            if (direct) lattice_w8(t, source.row, g, l);
            else quantise_w8(values.data() + g * GROUP, l);
            put_w8(record, lane, l);
        } else {
            if (direct) lattice_w4(t, source.row, g, l);
            else {
                // A padded tail must not stretch the range.
                float* x = values.data() + g * GROUP;
                for (int64_t k = w.cols - g * GROUP; k < GROUP; k++) x[k] = x[0];
                quantise_w4(x, l);
            }
            put_w4(record, lane, l);
        }
    }
}

}  // namespace

Format parse_format(const std::string& name) {
    for (int f = 0; f < NUM_FORMATS; f++)
        if (name == FORMAT_NAMES[f]) return Format(f);
    refuse("there is no weight format '" + name + "'; these exist: f32, f16, bf16, w8, w4");
}

const char* format_name(Format f) { return FORMAT_NAMES[f]; }

Format natural_format(Type t) {
    switch (t) {
        case TYPE_F32: return FMT_F32;
        case TYPE_F16: return FMT_F16;
        case TYPE_BF16: return FMT_BF16;
        case TYPE_Q4_0:
        case TYPE_Q4_1:
        case TYPE_Q4_K: return FMT_W4;
        default: return FMT_W8;
    }
}

Format natural_format(const std::vector<Part>& parts) {
    if (parts.empty()) refuse("a matrix needs at least one part");
    Format f = natural_format(parts[0].type);
    for (const Part& p : parts) f = std::min(f, natural_format(p.type));  // formats are sorted from wide to narrow
    // A 16-bit format beside another: only f32 holds both.
    for (const Part& p : parts)
        if (f == FMT_F16 && natural_format(p.type) == FMT_BF16) f = FMT_F32;
    return f;
}

bool is_lossless(Type t, Format f) {
    switch (f) {
        case FMT_F32: return true;
        case FMT_F16: return t == TYPE_F16;
        case FMT_BF16: return t == TYPE_BF16;
        case FMT_W8: return direct_w8(t);
        default: return t == TYPE_Q4_0 || t == TYPE_Q4_1;
    }
}

Weight shaped(Format format, int64_t rows, int64_t cols, bool interleave) {
    if (rows < 1 || cols < 1 || rows > MAX_ROWS || cols > MAX_COLS || (interleave && rows % 2))
        refuse("no packed matrix is [" + std::to_string(rows) + ", " + std::to_string(cols) + "]");
    Weight w;
    w.format = format;
    w.rows = rows;
    w.cols = cols;
    w.groups = (cols + GROUP - 1) / GROUP;
    w.interleaved = interleave;
    w.blocks = interleave ? (rows / 2 + 15) / 16 : (rows + BLOCK_COLS - 1) / BLOCK_COLS;
    if (w.blocks > MAX_ROWS * 64 / w.block_bytes())  // far beyond any memory, and below what 64 bits hold
        refuse("no packed matrix is as large as [" + std::to_string(rows) + ", " + std::to_string(cols) + "]");
    return w;
}

Weight pack(const std::vector<Part>& parts, Format format, bool interleave, int num_threads) {
    if (parts.empty()) refuse("a matrix needs at least one part");
    int64_t rows = 0;
    for (const Part& p : parts) {
        check(p);
        if (p.cols != parts[0].cols) refuse("parts of one matrix need the same number of columns");
        rows += p.rows;
    }
    if (interleave && (parts.size() != 2 || parts[0].rows != parts[1].rows))
        refuse("two parts of one shape can be interleaved, nothing else");
    Weight w = shaped(format, rows, parts[0].cols, interleave);
    w.data = allocate_piece(size_t(w.bytes()));
    in_parallel(w.blocks, num_threads, [&](int64_t b) {
        thread_local std::vector<float> values;
        for (int lane = 0; lane < BLOCK_COLS; lane++) {
            const RowSource source = find_row(parts, interleave, b, lane);
            if (source.row) pack_row(w, w.data.get() + b * w.block_bytes(), lane, source, values);
        }
    });
    return w;
}

std::vector<double> unpack(const Weight& w) {
    std::vector<double> out(size_t(w.rows) * size_t(w.cols));
    const int64_t half = w.rows / 2;
    for (int64_t r = 0; r < w.rows; r++) {
        const int64_t block = w.interleaved ? r % half / 16 : r / BLOCK_COLS;
        const int lane = int(w.interleaved ? r / half * 16 + r % half % 16 : r % BLOCK_COLS);
        const char* data = w.data.get() + block * w.block_bytes();
        for (int64_t k = 0; k < w.cols; k++) {
            const uint8_t* record = reinterpret_cast<const uint8_t*>(data) + k / GROUP * group_bytes(w.format);
            const int i = int(k % GROUP);
            double v;
            switch (w.format) {
                case FMT_F32: {
                    float f;
                    std::memcpy(&f, record + (i * BLOCK_COLS + lane) * 4, 4);
                    v = f;
                    break;
                }
                case FMT_F16: v = f16_to_f32(u16_at(record + (i * BLOCK_COLS + lane) * 2)); break;
                case FMT_BF16: {
                    const uint32_t bits = uint32_t(u16_at(record + (i / 2 * 2 * BLOCK_COLS + 2 * lane + i % 2) * 2)) << 16;
                    float f;
                    std::memcpy(&f, &bits, 4);
                    v = f;
                    break;
                }
                case FMT_W8:
                    v = double(f16_to_f32(u16_at(record + 2 * lane))) * (record[64 + i / 4 * 128 + lane * 4 + i % 4] - 128);
                    break;
                default: {
                    const int byte = record[128 + i / 8 * 128 + lane * 4 + i % 4];
                    const int nibble = i % 8 < 4 ? byte & 15 : byte >> 4;
                    v = double(f16_to_f32(u16_at(record + 2 * lane))) * nibble + double(f16_to_f32(u16_at(record + 64 + 2 * lane)));
                }
            }
            out[size_t(r * w.cols + k)] = v;
        }
    }
    return out;
}

void dequantise(const Part& part, float* out, int num_threads) {
    check(part);
    const int64_t stride = row_bytes(part.type, part.cols);
    constexpr int64_t AT_ONCE = 16;
    in_parallel((part.rows + AT_ONCE - 1) / AT_ONCE, num_threads, [&](int64_t i) {
        for (int64_t r = i * AT_ONCE; r < std::min(part.rows, (i + 1) * AT_ONCE); r++) {
            const int64_t at = part.order ? part.order[r] : r;
            dequant_row(part.type, part.data + at * stride, out + r * part.cols, part.cols);
        }
    });
}

}  // namespace octavo
