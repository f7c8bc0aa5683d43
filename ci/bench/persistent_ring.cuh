// What the blocks of `persistent_step.cu` stand on: words that cross blocks, and the ring of weights in shared memory.
//
// In: the constants that `persistent_step.cu` names. Out: `poll` and `write` of activations, `walk` through a block's weights,
// `produce`, which asks for them, `dot`, which multiplies an item, and `rotated`, a head's norm and rotation.

#pragma once

typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;

constexpr int WARPS = 16;           // that consume
constexpr int OTHERS = 4;           // warps beside them
constexpr int ASKERS = 1;           // of these, whose first threads ask for weights in turns
constexpr int CONSUMERS = WARPS * 32;
constexpr int D = 128;
constexpr int Q_COLUMNS = QH * D;
constexpr int QKV = (QH + 2 * KVH) * D;
constexpr int SHARING = QH / KVH;   // heads of queries that have one of keys
constexpr int SEG = 256;            // numbers that a warp reads at once
constexpr int SEGS = HIDDEN / SEG;  // of an item at most
constexpr int ROW = HIDDEN * 2;     // bytes of one of its rows at most
constexpr int SLOT = 2 * ROW * GROUP;
constexpr int BLOCKS = 132;
constexpr int APART = BLOCKS / QH;  // blocks from one that has a head of attention to the next
constexpr int MOST_PAIRS = (HIDDEN / 2 + BLOCKS - 1) / BLOCKS;
constexpr float EPS = 1e-6f;
constexpr int MOST_TURNS = 1 << 19;  // parts of a second: whoever waits so long waits for ever
constexpr u32 EMPTY = 0xffffffffu;   // two bf16 that no rounding makes

// One set of activations: each value of a step has its own place, and so has each hint; then the blocks' greatest logits.
constexpr int LAYER_HALVES = QKV + Q_COLUMNS + HIDDEN + INTER + HIDDEN;
constexpr int HINTS = 2 * 256;  // halves: a word for each block
constexpr int SET_HALVES = LAYER_HALVES * LAYERS + 4 * 256 + HINTS * 5 * LAYERS;
constexpr size_t COPY_HALVES = (size_t)SET_HALVES * 2;  // from one copy of both sets to the next

__host__ __device__ constexpr int slices(int k) { return (k + HIDDEN - 1) / HIDDEN; }
constexpr int MOST_SLICES = slices(INTER) > slices(Q_COLUMNS) ? slices(INTER) : slices(Q_COLUMNS);

struct Shared {
    u16 x[HIDDEN];
    u16 wide[INTER > Q_COLUMNS ? INTER : Q_COLUMNS];
    float2 partial[MOST_PAIRS * MOST_SLICES];
    float mixed[WARPS * D];
    float2 softmax[WARPS];
    float squares[16];
    u64 best[WARPS];
    u64 full[SLOTS];
    u64 empty[SLOTS];
    volatile u32 issued[OTHERS];  // slots that each has asked for
    u32 done;                     // warps, over all phases
};

struct Arguments {
    const u16 *embed, *qkv, *o, *gate_up, *down, *norm1, *norm2, *q_norm, *k_norm, *norm;
    const float *rope;            // cosines, then sines, of each position: [slots, 2, 64]
    u16 *k_cache, *v_cache;       // [layers, slots, KVH, D]
    u16 *sets;                    // two sets of activations
    int *token;                   // in: the token of this step; out: the next
    u64 *stamps;                  // [LAYERS * 5 + 1, 3, BLOCKS]
    u32 *read_cycles;             // of PROBE: [BLOCKS, 32]
    int slots, length, parity;
};

__device__ __forceinline__ u32 address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ float low(u32 w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high(u32 w) { return __uint_as_float(w & 0xffff0000u); }
__device__ __forceinline__ u32 pack(float a, float b) {
    u32 w;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(w) : "f"(a), "f"(b));
    return w;
}
// Whether one of two bf16 is not there yet.
__device__ __forceinline__ bool missing(u32 w) { u32 v = ~w; return ((v - 0x00010001u) & ~v & 0x80008000u) != 0; }
__device__ __forceinline__ u32 read_once(const void *p) {
    u32 w;
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(w) : "l"(p) : "memory");
    return w;
}
__device__ __forceinline__ uint4 read_once4(const void *p) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ bool missing(const uint4 &v) { return missing(v.x) || missing(v.y) || missing(v.z) || missing(v.w); }

// Reads until all words are there; the reads of one turn are under way at once. Word i is at `at(i)`.
template <int N, class At>
__device__ __forceinline__ void poll(u32 (&w)[N], At at) {
    for (int turns = 0;; turns++) {
        bool wait = false;
#pragma unroll
        for (int i = 0; i < N; i++) w[i] = read_once(at(i));
#pragma unroll
        for (int i = 0; i < N; i++) wait |= missing(w[i]);
        if (!HOPS || !wait) return;
        if (turns == MOST_TURNS) __trap();
        if (PAUSE) __nanosleep(PAUSE);
    }
}
template <int N, class At>
__device__ __forceinline__ void poll(uint4 (&v)[N], int count, At at) {
    for (int turns = 0;; turns++) {
        bool wait = false;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < count) v[i] = read_once4(at(i));
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < count) wait |= missing(v[i]);
        if (!HOPS || !wait) return;
        if (turns == MOST_TURNS) __trap();
        if (PAUSE) __nanosleep(PAUSE);
    }
}
__device__ __forceinline__ void write(void *p, u32 w) {
    asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" :: "l"(p), "r"(w) : "memory");
}
__device__ __forceinline__ void publish_half(u16 *p, u32 w, int lane) {
    if (COPIES > 1) w = __shfl_sync(~0u, w, 0);
    if (lane < COPIES)
        asm volatile("st.relaxed.gpu.global.b16 [%0], %1;" :: "l"(p + lane * COPY_HALVES), "h"((u16)w) : "memory");
}
// A word that lane 0 holds into all copies.
__device__ __forceinline__ void publish(u16 *p, u32 w, int lane) {
    if (COPIES > 1) w = __shfl_sync(~0u, w, 0);
    if (lane < COPIES) write(p + lane * COPY_HALVES, w);
}
__device__ __forceinline__ uint4 constant(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ u32 constant_word(const void *p) {
    u32 v;
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
__device__ __forceinline__ uint4 shared4(u32 a) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a));
    return v;
}
__device__ __forceinline__ void wait(u64 *barrier, u32 parity) {
    for (int turns = 0;; turns++) {
        u32 there;
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(there) : "r"(address(barrier)), "r"(parity) : "memory");
        if (there) return;
        if (turns == MOST_TURNS) __trap();
    }
}
__device__ __forceinline__ void arrive(u64 *barrier, u32 times) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" :: "r"(address(barrier)), "r"(times) : "memory");
}
__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" :: "n"(CONSUMERS) : "memory"); }
__device__ __forceinline__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
__device__ __forceinline__ float sum_of_warp(float v) {
#pragma unroll
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
    return v;
}
__device__ __forceinline__ void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Dot products of `count` segments of two rows with x; right in lane 0.
template <bool WHOLE>
__device__ __forceinline__ float2 dot(u32 row0, u32 row1, int count, const uint4 (&x)[SEGS], int lane) {
    constexpr int BATCH = SEGS > 4 ? 2 : 4;  // as the registers allow
    float c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < SEGS; j += BATCH) {
        uint4 a[BATCH], b[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (WHOLE || j + i < count) {
                a[i] = shared4(row0 + (j + i) * 512);
                b[i] = shared4(row1 + (j + i) * 512);
            }
#if MATH
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (WHOLE || j + i < count) {
                mma(c, a[i].x, b[i].x, a[i].y, b[i].y, x[j + i].x, x[j + i].y);
                mma(d, a[i].z, b[i].z, a[i].w, b[i].w, x[j + i].z, x[j + i].w);
            }
#endif
    }
    bool odd = (lane >> 2) & 1;  // the diagonals are in lanes 4g + g / 2
    float2 v;
    v.x = odd ? c[1] + d[1] : c[0] + d[0];
    v.y = odd ? c[3] + d[3] : c[2] + d[2];
#pragma unroll
    for (int m : {4, 9, 18}) {
        v.x += __shfl_xor_sync(~0u, v.x, m);
        v.y += __shfl_xor_sync(~0u, v.y, m);
    }
    return v;
}

// What a lane holds of a head's 128 numbers: 2l, 2l + 1, and both 64 further.
struct Head { float a0, a1, b0, b1; };

// The norm of a head's numbers and their rotation.
__device__ __forceinline__ Head rotated(u32 wa, u32 wb, u32 na, u32 nb, float2 cosine, float2 sine) {
    Head h = {low(wa), high(wa), low(wb), high(wb)};
    float r = rsqrtf(sum_of_warp(h.a0 * h.a0 + h.a1 * h.a1 + h.b0 * h.b0 + h.b1 * h.b1) / D + EPS);
    h.a0 *= r * low(na); h.a1 *= r * high(na); h.b0 *= r * low(nb); h.b1 *= r * high(nb);
    return {h.a0 * cosine.x - h.b0 * sine.x, h.a1 * cosine.y - h.b1 * sine.y,
            h.b0 * cosine.x + h.a0 * sine.x, h.b1 * cosine.y + h.a1 * sine.y};
}

struct Block {
    int b;
    __device__ __forceinline__ int first(u32 units) const { return units * (u32)b / BLOCKS; }
    __device__ __forceinline__ int last(u32 units) const { return units * (u32)(b + 1) / BLOCKS; }
};

// How items of a product lie in a slot.
template <int K>
struct Split {
    static constexpr int SLICES = slices(K);
    static constexpr bool PAIRS = SLICES <= GROUP;                       // whole pairs of rows; else slices of one pair
    static constexpr int EACH = PAIRS ? GROUP / SLICES * SLICES : GROUP;  // items of a slot
    static_assert(PAIRS || SLICES % GROUP == 0, "");
    static __device__ __forceinline__ u32 row0(int j) { return PAIRS ? j / SLICES * 4 * K + j % SLICES * ROW : j * ROW; }
    static __device__ __forceinline__ u32 row1(int j) { return row0(j) + (PAIRS ? 2 * K : GROUP * ROW); }
};
struct Pairs {  // rows that are neighbours
    static constexpr int EACH = GROUP;
    static __device__ __forceinline__ u32 row0(int j) { return j * 2 * ROW; }
    static __device__ __forceinline__ u32 row1(int j) { return row0(j) + ROW; }
};
struct Twins {  // rows of two tables
    static constexpr int EACH = GROUP;
    static __device__ __forceinline__ u32 row0(int j) { return j * ROW; }
    static __device__ __forceinline__ u32 row1(int j) { return row0(j) + GROUP * ROW; }
};

// Calls `group(source, bytes, second source or null, its bytes)` for each slot of this block, in order of use; the second lies
// behind half of the slot.
template <class Group>
__device__ __forceinline__ void walk(const Arguments &a, Block block, Group group) {
    auto rows = [&](const u16 *w, int k, int units, int each) {
        int end = block.last(units);
#pragma unroll 1
        for (int p = block.first(units); p < end; p += each)
            group(w + (size_t)p * 2 * k, min(each, end - p) * 4 * k, (const u16 *)nullptr, 0);
    };
    auto parts = [&](const u16 *w, int k) {
        int end = block.last(HIDDEN / 2);
#pragma unroll 1
        for (int p = block.first(HIDDEN / 2); p < end; p++)
#pragma unroll 1
            for (int at = 0; at < k; at += HIDDEN * GROUP) {
                const u16 *row = w + (size_t)p * 2 * k + at;
                int bytes = min(HIDDEN * GROUP, k - at) * 2;
                group(row, bytes, row + k, bytes);
            }
    };
#pragma unroll 1
    for (int l = 0; l < LAYERS; l++) {
        rows(a.qkv + (size_t)l * QKV * HIDDEN, HIDDEN, QKV / 2, GROUP);
        rows(a.o + (size_t)l * HIDDEN * Q_COLUMNS, Q_COLUMNS, HIDDEN / 2, GROUP / slices(Q_COLUMNS));
        const u16 *gate = a.gate_up + (size_t)l * 2 * INTER * HIDDEN, *up = gate + (size_t)INTER * HIDDEN;
        int end = block.last(INTER);
#pragma unroll 1
        for (int r = block.first(INTER); r < end; r += GROUP) {
            int bytes = min(GROUP, end - r) * ROW;
            group(gate + (size_t)r * HIDDEN, bytes, up + (size_t)r * HIDDEN, bytes);
        }
        const u16 *down = a.down + (size_t)l * HIDDEN * INTER;
        if constexpr (Split<INTER>::PAIRS) rows(down, INTER, HIDDEN / 2, GROUP / slices(INTER));
        else parts(down, INTER);
    }
    rows(a.embed, HIDDEN, VOCAB / 2, GROUP);
}

__device__ __forceinline__ void copy(u32 to, const void *source, u32 bytes, u32 full, u64 policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 :: "r"(to), "l"(source), "r"(bytes), "r"(full), "l"(policy) : "memory");
}

// Asks for all of this block's weights: a slot that is free, FLIGHT at most under way.
__device__ __forceinline__ void produce(const Arguments &a, Block block, Shared &s, unsigned char *ring, int which) {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    u32 i = 0, issued = 0;
    walk(a, block, [&](const u16 *first, u32 bytes, const u16 *second, u32 more) {
        if (i % ASKERS == which) {
            u32 slot = i % SLOTS, full = address(&s.full[slot]), to = address(ring) + slot * SLOT;
            wait(&s.empty[slot], (i / SLOTS & 1) ^ 1);
            if (FLIGHT < SLOTS && i >= FLIGHT) wait(&s.full[(i - FLIGHT) % SLOTS], (i - FLIGHT) / SLOTS & 1);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(full), "r"(bytes + more) : "memory");
            copy(to, first, bytes, full, policy);
            if (second) copy(to + SLOT / 2, second, more, full, policy);
            s.issued[which] = ++issued;
        }
        i++;
    });
}
