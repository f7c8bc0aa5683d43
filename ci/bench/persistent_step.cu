// A decode step of a dense Qwen3 model in one kernel: a measuring instrument beside the chain of launches, not a product.
//
// One block per multiprocessor stays for the whole step. Its producer thread streams the block's rows of every product through a
// ring in shared memory, in the order of use, and does not wait for activations, so the ring fills while consumers wait.
// Activations cross blocks without a flag or a barrier: every word is written once a step into memory that was filled with the
// bf16 pattern 0xffff, which no rounding makes, and whoever needs a word reads it until it is another. No atomics, and sums have
// one order: results are deterministic.
//
// A slot of the ring holds GROUP items at most. An item is two rows, or a slice of K of two rows, which one warp multiplies by x.
// Lane l of a warp holds 8 numbers of x where it reads 8 weights, 512 bytes to a warp. Two rows are the 16 rows of
// `mma.m16n8k16`, each cut into 8 slices of K; the 8 columns of B are x's slices; the diagonal of D holds the slices' dot products.
//
// Set by -D: HIDDEN, LAYERS, QH, KVH, INTER, VOCAB, SLOTS, GROUP, and of variants HOPS (0: nobody waits for an activation), MATH (0: nor
// is anything multiplied), WEIGHTS (0: none are read), STAMPS, FLIGHT (items that are under way at once), COPIES (of activations:
// blocks read different ones), PAUSE (ns between reads of a word that is not there), HINT (1: first a word of each
// block is read that says it is done), BRING (1: activations and norms are
// asked for two layers ahead), PROBE, ASKERS, EVICT_FIRST.

typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;

constexpr int WARPS = 16;
constexpr int PRODUCERS = 4;           // warps of which ASKERS' first threads ask for items in turns
constexpr int CONSUMERS = WARPS * 32;
constexpr int D = 128;
constexpr int Q_COLUMNS = QH * D;
constexpr int QKV = (QH + 2 * KVH) * D;
constexpr int SHARING = QH / KVH;      // heads of queries that have one of keys
constexpr int SEG = 256;
constexpr int SEGS = HIDDEN / SEG;     // of an item at most
constexpr int ROW = HIDDEN * 2;        // bytes of one of its rows at most
constexpr int SLOT = 2 * ROW * GROUP;
constexpr int BLOCKS = 132;
constexpr int MOST_PAIRS = (HIDDEN / 2 + BLOCKS - 1) / BLOCKS;
static_assert(FLIGHT % ASKERS == 0 && SLOTS % ASKERS == 0, "");  // so that a producer waits for an item of its own
constexpr float EPS = 1e-6f;
constexpr int MOST_TURNS = 1 << 19;  // seconds: whoever waits so long waits for ever
constexpr u32 EMPTY = 0xffffffffu;

// Words of one set of activations: each value of a step has its own place.
constexpr int LAYER_HALVES = QKV + Q_COLUMNS + HIDDEN + INTER + HIDDEN;
constexpr int HINTS = 2 * 256;         // halves: a word for each block
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
    volatile u32 issued[PRODUCERS];
    u32 done;
};

struct Arguments {
    const u16 *embed, *qkv, *o, *gate_up, *down, *norm1, *norm2, *q_norm, *k_norm, *norm;
    const float *rope;            // cosines, then sines, of each position: [slots, 2, 64]
    u16 *k_cache, *v_cache;       // [layers, slots, KVH, D]
    u16 *sets;                    // two sets of activations
    int *token;                   // in: the token of this step; out: the next
    u64 *stamps;                  // [LAYERS * 5 + 1, 3, BLOCKS]
    u32 *counter;                 // of BARRIER
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
    if (lane < COPIES) asm volatile("st.relaxed.gpu.global.b16 [%0], %1;" :: "l"(p + lane * COPY_HALVES), "h"((u16)w) : "memory");
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
#if EVICT_FIRST
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 :: "r"(to), "l"(source), "r"(bytes), "r"(full), "l"(policy) : "memory");
#else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(source), "r"(bytes), "r"(full) : "memory");
#endif
}

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

struct Consumer {
    const Arguments &a;
    Shared &s;
    unsigned char *ring;
    Block block;
    int warp, lane;
    u32 group = 0;  // of the first item of this phase
    u64 starved = 0;  // ns that this warp waited for weights in this phase


    // When the first warp had its input, when the last was done, and how long the one that waited longest waited for weights.
    __device__ __forceinline__ void stamp(int row, int side) {
#if STAMPS
        if (lane == 0 && side) {
            atomicMax(&a.stamps[(row * 3 + 1) * BLOCKS + block.b], now());
            atomicMax(&a.stamps[(row * 3 + 2) * BLOCKS + block.b], starved);
        }
        if (lane == 0 && warp == 0 && !side) a.stamps[row * 3 * BLOCKS + block.b] = now();
        if (side) starved = 0;
#endif
    }

    // Calls `give(n, dot)` for this warp's items of the next `count`; an item has x's segments, or what of them K has.
    template <class Layout, bool WHOLE, class Give>
    __device__ __forceinline__ void items(int count, int segments, const uint4 (&x)[SEGS], Give give) {
#pragma unroll 1
        for (int n = warp; n < count; n += WARPS) {
            u32 i = group + n / Layout::EACH, slot = i % SLOTS, j = n % Layout::EACH, at = address(ring) + slot * SLOT + lane * 16;
#if WEIGHTS
            u64 since = STAMPS ? now() : 0;
            while (s.issued[i % ASKERS] <= i / ASKERS) {}  // else the parity might be that of the slot's use before
            wait(&s.full[slot], i / SLOTS & 1);
            if (STAMPS) starved += now() - since;
#endif
            float2 v = dot<WHOLE>(at + Layout::row0(j), at + Layout::row1(j), segments, x, lane);
#if WEIGHTS
            // Behind the shuffles, so that all lanes have read. The last of the group speaks for those that are not there.
            if (lane == 0) arrive(&s.empty[slot], j == Layout::EACH - 1 || n == count - 1 ? GROUP - j : 1);
#endif
            give(n, v);
        }
        group += (count + Layout::EACH - 1) / Layout::EACH;
    }

    // Says that this block's warps, of which each calls it, have written what they have of a phase. Nothing is ordered by it: who
    // sees it looks at the words themselves, but need not look before.
    __device__ __forceinline__ void hint(u32 *hints) {
#if HINT
        __syncwarp();
        if (lane == 0 && (atomicAdd(&s.done, 1) & (WARPS - 1)) == WARPS - 1)
            for (int c = 0; c < COPIES; c++) write((u16 *)hints + c * COPY_HALVES + block.b * 2, 1);
#endif
    }
    __device__ __forceinline__ void await(const u32 *hints, int stride) {
#if HINT
        if (warp == 0) {
            bool wait;
            do {
                wait = false;
#pragma unroll
                for (int i = 0; i < (BLOCKS + 31) / 32; i++) {
                    int from = (lane + i * 32) * stride;
                    if (from < BLOCKS && (stride == 1 || lane + i * 32 < QH)) wait |= read_once(hints + from) == EMPTY;
                }
            } while (HOPS && __any_sync(~0u, wait));
        }
        meet();
#endif
    }

    // Brings into the L2 cache what a layer reads beside its weights: else each wait is one for memory that others keep busy.
    __device__ __forceinline__ void bring(int layer) {
#if BRING
        if (layer >= LAYERS) return;
        auto lines = [&](const void *p, int bytes) {
            for (int i = (block.b + lane * BLOCKS) * 128; i < bytes; i += BLOCKS * 32 * 128)
                asm volatile("prefetch.global.L2::evict_last [%0];" :: "l"((const char *)p + i) : "memory");
        };
        for (int c = 0; c < COPIES; c++) {
            lines(a.sets + c * COPY_HALVES + (size_t)a.parity * SET_HALVES + (size_t)layer * LAYER_HALVES, LAYER_HALVES * 2);
            if (HINT) lines(a.sets + c * COPY_HALVES + (size_t)a.parity * SET_HALVES + (size_t)LAYERS * LAYER_HALVES + 1024 + layer * 5 * HINTS, HINTS * 10);
        }
        lines(a.norm1 + layer * HIDDEN, HIDDEN * 2);
        lines(a.norm2 + layer * HIDDEN, HIDDEN * 2);
        lines(a.q_norm + layer * D, D * 2);
        lines(a.k_norm + layer * D, D * 2);
        lines(a.k_cache + (size_t)layer * a.slots * KVH * D, a.length * KVH * D * 2);
        lines(a.v_cache + (size_t)layer * a.slots * KVH * D, a.length * KVH * D * 2);
#endif
    }

    // N numbers into shared memory, times a norm's weight if there is one, and from there this warp's slice into registers.
    // Returns the norm's scale.
    template <int N, bool NORM>
    __device__ __forceinline__ float stage(u16 *to, const u16 *from, const u16 *weight, int slice, uint4 (&x)[SEGS], const u32 *hints, int stride = 1) {
        constexpr int EACH = (N / 8 + CONSUMERS - 1) / CONSUMERS;
        if (hints) await(hints, stride);
        int thread = warp * 32 + lane, count = thread < N / 8 ? (N / 8 - thread + CONSUMERS - 1) / CONSUMERS : 0;
        if (count) {
            uint4 w = {}, v[EACH];
            if (NORM) w = constant(weight + thread * 8);
            poll(v, count, [&](int i) { return from + (thread + i * CONSUMERS) * 8; });
            if (NORM) {
                static_assert(!NORM || EACH == 1, "");
                float t = 0;
                auto one = [&](u32 &n, u32 m) {
                    t += low(n) * low(n) + high(n) * high(n);
                    n = pack(low(n) * low(m), high(n) * high(m));
                };
                one(v[0].x, w.x); one(v[0].y, w.y); one(v[0].z, w.z); one(v[0].w, w.w);
                *(uint4 *)&to[thread * 8] = v[0];
                t = sum_of_warp(t);
                if (lane == 0) s.squares[warp] = t;
            } else {
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    if (i < count) *(uint4 *)&to[(thread + i * CONSUMERS) * 8] = v[i];
            }
        }
        meet();
#pragma unroll
        for (int j = 0; j < SEGS; j++)
            if (NORM || slice * SEGS + j < N / SEG) x[j] = shared4(address(to) + (slice * SEGS + j) * 512 + lane * 16);
        if (!NORM) return 1;
        float total = 0;
#pragma unroll
        for (int j = 0; j < SEGS; j++) total += s.squares[j];
        return rsqrtf(total / HIDDEN + EPS);
    }

    // x times rows whose K is cut into slices, added to the residual.
    template <int K>
    __device__ __forceinline__ void split(const u16 *from, u16 *out, u32 &residual, uint4 (&x)[SEGS], int row, const u32 *before, int stride, u32 *after) {
        constexpr int SLICES = slices(K);
        // Warps that share a slice of x: with 3 slices there are no more items than warps, so a warp keeps its slice.
        static_assert(WARPS % SLICES == 0 || MOST_PAIRS * SLICES <= WARPS, "");
        int p0 = block.first(HIDDEN / 2), count = block.last(HIDDEN / 2) - p0, slice = warp % SLICES;
        stage<K, false>(s.wide, from, nullptr, slice, x, before, stride);
        stamp(row, 0);
        items<Split<K>, K % HIDDEN == 0>(count * SLICES, K / SEG - slice * SEGS, x, [&](int n, float2 v) { if (lane == 0) s.partial[n] = v; });
        meet();
        if (warp < count) {
            float2 v = {low(residual), high(residual)};
#pragma unroll
            for (int i = 0; i < SLICES; i++) v.x += s.partial[warp * SLICES + i].x, v.y += s.partial[warp * SLICES + i].y;
            residual = pack(v.x, v.y);
            publish(out + (p0 + warp) * 2, residual, lane);
        }
        hint(after);
        stamp(row, 1);
    }

    struct Head { float a0, a1, b0, b1; };

    // The norm of a head's 128 numbers and its rotation: a lane holds 2l, 2l + 1 and both 64 further.
    __device__ __forceinline__ Head rotated(u32 wa, u32 wb, u32 na, u32 nb, float2 cosine, float2 sine) {
        Head h = {low(wa), high(wa), low(wb), high(wb)};
        float r = rsqrtf(sum_of_warp(h.a0 * h.a0 + h.a1 * h.a1 + h.b0 * h.b0 + h.b1 * h.b1) / D + EPS);
        h.a0 *= r * low(na); h.a1 *= r * high(na); h.b0 *= r * low(nb); h.b1 *= r * high(nb);
        return {h.a0 * cosine.x - h.b0 * sine.x, h.a1 * cosine.y - h.b1 * sine.y,
                h.b0 * cosine.x + h.a0 * sine.x, h.b1 * cosine.y + h.a1 * sine.y};
    }

    // One head of queries in this block; warps take slots in turns, and the last slot is this step's own.
    __device__ __forceinline__ void attention(int layer, int head, const u16 *qkv, u16 *out, int row, u32 *hints) {
        int kv = head / SHARING, last = a.length - 1;
        const u16 *keys = a.k_cache + ((size_t)layer * a.slots * KVH + kv) * D, *values = a.v_cache + ((size_t)layer * a.slots * KVH + kv) * D;
        const float *rope = a.rope + (size_t)last * D;
        float2 cosine = *(const float2 *)(rope + 2 * lane), sine = *(const float2 *)(rope + 64 + 2 * lane);
        u32 qa = constant_word(a.q_norm + layer * D + 2 * lane), qb = constant_word(a.q_norm + layer * D + 64 + 2 * lane);
        u32 ka = constant_word(a.k_norm + layer * D + 2 * lane), kb = constant_word(a.k_norm + layer * D + 64 + 2 * lane);
        u32 cached[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int slot = warp + i * WARPS;
            if (slot < last) {
                size_t at = (size_t)slot * KVH * D + 2 * lane;
                cached[i][0] = *(const u32 *)(keys + at); cached[i][1] = *(const u32 *)(keys + at + 64);
                cached[i][2] = *(const u32 *)(values + at); cached[i][3] = *(const u32 *)(values + at + 64);
            }
        }
        const u16 *mine = qkv + head * D + 2 * lane;
        const u16 *key = qkv + Q_COLUMNS + kv * D + 2 * lane;
        bool has_last = warp == (last & (WARPS - 1));
        u32 w[2], n[4];
        if (has_last) poll(n, [&](int i) { return key + (i >> 1) * KVH * D + (i & 1) * 64; });
        poll(w, [&](int i) { return mine + i * 64; });
        stamp(row, 0);
        Head q = rotated(w[0], w[1], qa, qb, cosine, sine);
        float maximum = -1e30f, total = 0, a0 = 0, a1 = 0, b0 = 0, b1 = 0;
        auto take = [&](u32 k0, u32 k1, u32 v0, u32 v1) {
            float score = sum_of_warp(q.a0 * low(k0) + q.a1 * high(k0) + q.b0 * low(k1) + q.b1 * high(k1)) * 0.08838834764831845f;
            float next = fmaxf(maximum, score), keep = __expf(maximum - next), weight = __expf(score - next);
            maximum = next;
            total = total * keep + weight;
            a0 = a0 * keep + weight * low(v0); a1 = a1 * keep + weight * high(v0);
            b0 = b0 * keep + weight * low(v1); b1 = b1 * keep + weight * high(v1);
        };
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (warp + i * WARPS < last) take(cached[i][0], cached[i][1], cached[i][2], cached[i][3]);
        for (int slot = warp + 2 * WARPS; slot < last; slot += WARPS) {
            size_t at = (size_t)slot * KVH * D + 2 * lane;
            take(*(const u32 *)(keys + at), *(const u32 *)(keys + at + 64), *(const u32 *)(values + at), *(const u32 *)(values + at + 64));
        }
        if (has_last) {
            u32 k0 = n[0], k1 = n[1], v0 = n[2], v1 = n[3];
            Head k = rotated(k0, k1, ka, kb, cosine, sine);
            k0 = pack(k.a0, k.a1); k1 = pack(k.b0, k.b1);
            if (head % SHARING == 0) {
                size_t at = (size_t)last * KVH * D + 2 * lane;
                *(u32 *)(keys + at) = k0; *(u32 *)(keys + at + 64) = k1;
                *(u32 *)(values + at) = v0; *(u32 *)(values + at + 64) = v1;
            }
            take(k0, k1, v0, v1);
        }
        *(float4 *)&s.mixed[warp * D + lane * 4] = make_float4(a0, a1, b0, b1);
        if (lane == 0) s.softmax[warp] = make_float2(maximum, total);
        meet();
        if (warp < 2) {
            float most = -1e30f, sum = 0, x = 0, y = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) most = fmaxf(most, s.softmax[w].x);
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                float2 part = s.softmax[w], v = *(float2 *)&s.mixed[w * D + lane * 4 + warp * 2];
                float weight = __expf(part.x - most);
                sum += weight * part.y; x += weight * v.x; y += weight * v.y;
            }
            for (int c = 0; c < COPIES; c++) write(out + c * COPY_HALVES + head * D + warp * 64 + 2 * lane, pack(x / sum, y / sum));
        }
        hint(hints);
        stamp(row, 1);
    }

    // The greatest logit of all blocks into the token.
    __device__ __forceinline__ void choose(float value, int index, u64 *packets) {
        auto packet = [](float v, int i) {  // ordered as the value, then as the lower index
            u32 bits = __float_as_uint(v);
            bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
            return ((u64)bits << 32) | (u32)~i;
        };
        if (lane == 0) s.best[warp] = packet(value, index);
        meet();
        if (warp == 0) {
            u64 best = lane < WARPS ? s.best[lane] : 0;
            for (int d = 16; d; d >>= 1) { u64 other = __shfl_xor_sync(~0u, best, d); if (other > best) best = other; }
            if (lane == 0) asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" :: "l"(packets + block.b), "l"(best) : "memory");
            if (block.b == 0) {
                best = 0;
                for (int i = lane; i < BLOCKS; i += 32) {
                    u64 other;
                    do asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(other) : "l"(packets + i) : "memory");
                    while (HOPS && other == ~0ull);
                    if (other > best) best = other;
                }
                for (int d = 16; d; d >>= 1) { u64 other = __shfl_xor_sync(~0u, best, d); if (other > best) best = other; }
                if (lane == 0) *a.token = (int)~(u32)best;
            }
        }
    }

    __device__ __forceinline__ void step() {
        u16 *set = a.sets + (size_t)a.parity * SET_HALVES;
        const size_t copy = (block.b % COPIES) * COPY_HALVES;  // that this block reads
        const u16 *hidden = a.embed + (size_t)*(volatile int *)a.token * HIDDEN;
        int pair = block.first(HIDDEN / 2) + warp;
        u32 residual = pair < block.last(HIDDEN / 2) ? constant_word(hidden + pair * 2) : 0;
        uint4 x[SEGS];
        if (warp == WARPS - 1) bring(0), bring(1);
        u32 *hints = (u32 *)(set + (size_t)LAYERS * LAYER_HALVES + 4 * 256);
        const u32 *before = nullptr;
#pragma unroll 1
        for (int l = 0; l < LAYERS; l++, hints += HINTS / 2 * 5) {
            const u32 *seen = hints + copy / 2;
            if (warp == WARPS - 1) bring(l + 2);
            u16 *qkv = set + (size_t)l * LAYER_HALVES, *mixed = qkv + QKV, *middle = mixed + Q_COLUMNS, *act = middle + HIDDEN, *out = act + INTER;
            float scale = stage<HIDDEN, true>(s.x, hidden, a.norm1 + l * HIDDEN, 0, x, before);
            stamp(l * 5, 0);
            int first = block.first(QKV / 2);
            items<Pairs, true>(block.last(QKV / 2) - first, SEGS, x, [&](int n, float2 v) {
                publish(qkv + (first + n) * 2, pack(v.x * scale, v.y * scale), lane);
            });
            stamp(l * 5, 1);
            if (block.b % (BLOCKS / QH) == 0 && block.b / (BLOCKS / QH) < QH) attention(l, block.b / (BLOCKS / QH), qkv + copy, mixed, l * 5 + 1, hints);
            split<Q_COLUMNS>(mixed + copy, middle, residual, x, l * 5 + 2, seen, BLOCKS / QH, hints + HINTS / 2 * 2);
            scale = stage<HIDDEN, true>(s.x, middle + copy, a.norm2 + l * HIDDEN, 0, x, seen + HINTS / 2 * 2);
            stamp(l * 5 + 3, 0);
            first = block.first(INTER);
            items<Twins, true>(block.last(INTER) - first, SEGS, x, [&](int n, float2 v) {
                float g = v.x * scale;
                publish_half(act + first + n, pack(g / (1 + __expf(-g)) * v.y * scale, 0), lane);
            });
            stamp(l * 5 + 3, 1);
            hint(hints + HINTS / 2 * 3);
            split<INTER>(act + copy, out, residual, x, l * 5 + 4, seen + HINTS / 2 * 3, 1, hints + HINTS / 2 * 4);
            hidden = out + copy;
            before = seen + HINTS / 2 * 4;
        }
        float scale = stage<HIDDEN, true>(s.x, hidden, a.norm, 0, x, before);
        stamp(LAYERS * 5, 0);
        float best = -1e30f;
        int index = 0, first = block.first(VOCAB / 2);
        items<Pairs, true>(block.last(VOCAB / 2) - first, SEGS, x, [&](int n, float2 v) {
            if (v.x * scale > best) best = v.x * scale, index = 2 * (first + n);
            if (v.y * scale > best) best = v.y * scale, index = 2 * (first + n) + 1;
        });
        choose(best, index, (u64 *)(set + (size_t)LAYERS * LAYER_HALVES));
        stamp(LAYERS * 5, 1);
    }

    // What the ring alone can: every slot is let go as it comes.
    __device__ __forceinline__ void drain() {
        if (warp) return;
        u32 i = 0;
        walk(a, block, [&](const u16 *, u32, const u16 *, u32) {
            wait(&s.full[i % SLOTS], i / SLOTS & 1);
            if (lane == 0) arrive(&s.empty[i % SLOTS], GROUP);
            i++;
        });
    }
};

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS * 32, 1) decode(const __grid_constant__ Arguments a) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared &s = *(Shared *)(memory + SLOT * SLOTS);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address(&s.full[i])) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(address(&s.empty[i])), "n"(GROUP) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int i = 0; i < PRODUCERS; i++) s.issued[i] = 0;
        s.done = 0;
    }
    __syncthreads();
    Block block = {(int)blockIdx.x};
    if (warp < WARPS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
        Consumer consumer = {a, s, memory, block, warp, lane};
        if (HOPS == 0 && MATH == 0) consumer.drain();
        else consumer.step();
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (WEIGHTS && lane == 0 && warp < WARPS + ASKERS) produce(a, block, s, memory, warp - WARPS);
#if PROBE  // how long a read of a word in the L2 cache takes meanwhile
        if (warp == WARPS + PRODUCERS - 1 && lane == 0) {
            u32 count = 0, most = 0, sum = 0, began;
            u64 end = now() + 200000;
            while (now() < end) {
                began = clock();
                if (read_once(a.counter + block.b * 32) == 7) count++;
                u32 took = clock() - began;
                sum += took, most = max(most, took), count++;
            }
            a.counter[block.b * 32 + 16] = sum / count, a.counter[block.b * 32 + 17] = most;
        }
#endif
        __syncwarp();
        // The other step's set is made empty.
        uint4 *other = (uint4 *)(a.sets + (size_t)(a.parity ^ 1) * SET_HALVES);
        for (int c = 0; c < COPIES; c++)
            for (int i = block.b * PRODUCERS * 32 + threadIdx.x - CONSUMERS; i < SET_HALVES / 8; i += BLOCKS * PRODUCERS * 32)
                other[c * (COPY_HALVES / 8) + i] = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY);
    }
}

extern "C" __global__ void size_of_shared(int *out) { *out = SLOT * SLOTS + sizeof(Shared); }
