// A decode step of a dense Qwen3 model in one kernel: a measuring instrument beside the chain of launches, not a product.
//
// One block per multiprocessor stays for the whole step. Its producer thread streams the block's rows of every product through a
// ring in shared memory, in the order of use, and does not wait for activations, so the ring fills while consumers wait.
// Activations cross blocks without a flag or a barrier: every word is written once a step into memory that was filled with the
// bf16 pattern 0xffff, which no rounding makes, and whoever needs a word reads it until it is another. No atomics, and sums have
// one order: results are deterministic.
//
// A product: lane l of a warp holds 8 numbers of x where it reads 8 weights, 512 bytes to a warp. Two rows are the 16 rows of
// `mma.m16n8k16`, each cut into 8 slices of K; the 8 columns of B are x's slices; the diagonal of D holds the slices' dot products.
//
// Set by -D: HIDDEN, LAYERS, QH, KVH, INTER, VOCAB, SLOT, SLOTS, QKV_PAIRS, GU_PAIRS, O_PAIRS, DOWN_PARTS, and of variants
// HOPS (0: nobody waits for an activation), MATH (0: nor is anything multiplied), STAMPS, AHEAD, BARRIER, EVICT_FIRST.

typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;

constexpr int WARPS = 16;
constexpr int CONSUMERS = WARPS * 32;
constexpr int D = 128;
constexpr int Q_COLUMNS = QH * D;
constexpr int QKV = (QH + 2 * KVH) * D;
constexpr int GROUP = QH / KVH;
constexpr int SEG = 256;
constexpr int BLOCKS = 132;
constexpr int MOST_PAIRS = (HIDDEN / 2 + BLOCKS - 1) / BLOCKS;
constexpr float EPS = 1e-6f;
constexpr int MOST_TURNS = 1 << 22;  // seconds: whoever waits so long waits for ever
constexpr u32 EMPTY = 0xffffffffu;

// Words of one set of activations: each value of a step has its own place.
constexpr int LAYER_HALVES = QKV + Q_COLUMNS + HIDDEN + INTER + HIDDEN;
constexpr int SET_HALVES = LAYER_HALVES * LAYERS + 4 * 256;

struct Shared {
    u16 x[HIDDEN];
    float partial[MOST_PAIRS * 2 * 16];
    float mixed[WARPS * D];
    float2 softmax[WARPS];
    float squares[16];
    u64 best[WARPS];
    u64 full[SLOTS];
    u64 empty[SLOTS];
    volatile u32 issued;
};

struct Arguments {
    const u16 *embed, *qkv, *o, *gate_up, *down, *norm1, *norm2, *q_norm, *k_norm, *norm;
    const float *rope;            // cosines, then sines, of each position: [slots, 2, 64]
    u16 *k_cache, *v_cache;       // [layers, slots, KVH, D]
    u16 *sets;                    // two sets of activations
    int *token;                   // in: the token of this step; out: the next
    u64 *stamps;                  // [LAYERS * 5 + 1, 2, BLOCKS]
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
__device__ __forceinline__ u32 poll(const void *p) {
    u32 w = read_once(p);
#if HOPS
    for (int turns = 0; missing(w); turns++) {
        if (turns == MOST_TURNS) __trap();
        w = read_once(p);
    }
#endif
    return w;
}
__device__ __forceinline__ uint4 poll4(const void *p) {
    uint4 v;
    bool wait;
    int turns = 0;
    do {
        if (++turns == MOST_TURNS) __trap();
        asm volatile("ld.relaxed.gpu.global.v4.b32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
        wait = HOPS && (missing(v.x) || missing(v.y) || missing(v.z) || missing(v.w));
    } while (wait);
    return v;
}
__device__ __forceinline__ void publish(void *p, u32 w) {
    asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" :: "l"(p), "r"(w) : "memory");
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
    asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L; }"
                 :: "r"(address(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ void arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(address(barrier)) : "memory");
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
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Dot products of slices of two rows, in accumulators.
struct Dots {
    float c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
    __device__ __forceinline__ void add(u32 row0, u32 row1, const uint4 &x) {
        uint4 a = shared4(row0), b = shared4(row1);
#if MATH
        mma(c, a.x, b.x, a.y, b.y, x.x, x.y);
        mma(d, a.z, b.z, a.w, b.w, x.z, x.w);
#endif
    }
    // Sums of both diagonals, right in lane 0: lanes 4g + g / 2 hold them.
    __device__ __forceinline__ float2 sum(int lane) {
        bool odd = (lane >> 2) & 1;
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
};

// Where in the ring a walk through all slots is.
struct Place {
    int slot = 0;
    u32 phase = 0;
    __device__ __forceinline__ void next() { if (++slot == SLOTS) { slot = 0; phase ^= 1; } }
};

struct Block {
    int b;
    __device__ __forceinline__ int first(int units) const { return (int)((long long)units * b / BLOCKS); }
    __device__ __forceinline__ int last(int units) const { return (int)((long long)units * (b + 1) / BLOCKS); }
};

// Calls `copy(offset in the slot, source, bytes)` and then `done(bytes)` for each slot of this block, in order of use.
template <class Copy, class Done>
__device__ __forceinline__ void walk(const Arguments &a, Block block, Copy copy, Done done) {
    auto rows = [&](const u16 *w, int k, int units, int pairs) {
        int end = block.last(units);
        for (int p = block.first(units); p < end; p += pairs) {
            int n = min(pairs, end - p);
            copy(0, w + (size_t)p * 2 * k, n * 4 * k);
            done(n * 4 * k);
        }
    };
    for (int l = 0; l < LAYERS; l++) {
        rows(a.qkv + (size_t)l * QKV * HIDDEN, HIDDEN, QKV / 2, QKV_PAIRS);
        rows(a.o + (size_t)l * HIDDEN * Q_COLUMNS, Q_COLUMNS, HIDDEN / 2, O_PAIRS);
        const u16 *gate = a.gate_up + (size_t)l * 2 * INTER * HIDDEN, *up = gate + (size_t)INTER * HIDDEN;
        int end = block.last(INTER / 2);
        for (int p = block.first(INTER / 2); p < end; p += GU_PAIRS) {
            int bytes = min(GU_PAIRS, end - p) * 4 * HIDDEN;
            copy(0, gate + (size_t)p * 2 * HIDDEN, bytes);
            copy(GU_PAIRS * 4 * HIDDEN, up + (size_t)p * 2 * HIDDEN, bytes);
            done(2 * bytes);
        }
        const u16 *down = a.down + (size_t)l * HIDDEN * INTER;
        if (DOWN_PARTS == 1) {
            rows(down, INTER, HIDDEN / 2, 1);
        } else {
            constexpr int part = INTER / DOWN_PARTS;
            int stop = block.last(HIDDEN / 2);
            for (int i = block.first(HIDDEN / 2) * DOWN_PARTS; i < stop * DOWN_PARTS; i++) {
                const u16 *row = down + (size_t)(i / DOWN_PARTS) * 2 * INTER + (i % DOWN_PARTS) * part;
                copy(0, row, part * 2);
                copy(part * 2, row + INTER, part * 2);
                done(part * 4);
            }
        }
    }
    rows(a.embed, HIDDEN, VOCAB / 2, QKV_PAIRS);
}

__device__ __forceinline__ void produce(const Arguments &a, Block block, Shared &s, unsigned char *ring) {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    Place place;
    struct Piece { const void *source; u32 to, bytes; } pieces[2];
    int count = 0;
    walk(a, block,
         [&](int offset, const u16 *source, int bytes) {
             pieces[count++] = {source, address(ring + place.slot * SLOT + offset), (u32)bytes};
         },
         [&](int bytes) {
             u32 full = address(&s.full[place.slot]);
             wait(&s.empty[place.slot], place.phase ^ 1);
             asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(full), "r"(bytes) : "memory");
#pragma unroll
             for (int i = 0; i < 2; i++)
                 if (i < count)
#if EVICT_FIRST
                     asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                                  :: "r"(pieces[i].to), "l"(pieces[i].source), "r"(pieces[i].bytes), "r"(full), "l"(policy) : "memory");
#else
                     asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                                  :: "r"(pieces[i].to), "l"(pieces[i].source), "r"(pieces[i].bytes), "r"(full) : "memory");
#endif
             count = 0;
             place.next();
#if AHEAD
             s.issued = s.issued + 1;
#endif
         });
}

// Brings slots that the ring has no room for into the L2 cache, AHEAD of them before the producer asks.
__device__ __forceinline__ void prefetch(const Arguments &a, Block block, Shared &s) {
    u32 used = 0;
    walk(a, block,
         [&](int, const u16 *source, int bytes) {
             if (used >= SLOTS) {
                 while (s.issued + AHEAD < used) __nanosleep(20);
                 if (s.issued < used)
                     asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(source), "r"(bytes) : "memory");
             }
         },
         [&](int) { used++; });
}

struct Consumer {
    const Arguments &a;
    Shared &s;
    unsigned char *ring;
    Block block;
    int warp, lane;
    Place place;

    __device__ __forceinline__ u32 enter() {
        wait(&s.full[place.slot], place.phase);
        return address(ring) + place.slot * SLOT + lane * 16;
    }
    __device__ __forceinline__ void leave() {
        __syncwarp();
        if (lane == 0) arrive(&s.empty[place.slot]);
        place.next();
    }
    __device__ __forceinline__ void stamp(int row, int side) {
#if STAMPS
        if (warp == 0 && lane == 0) a.stamps[(row * 2 + side) * BLOCKS + block.b] = now();
#endif
    }

    // x times the norm's weight into shared memory and from there into registers; the norm's scale.
    __device__ __forceinline__ float normed(const u16 *x, const u16 *weight, uint4 (&held)[HIDDEN / SEG]) {
        int i = warp * 32 + lane;
        if (i < HIDDEN / 8) {
            uint4 w = constant(weight + i * 8), v = poll4(x + i * 8), y;
            float t = 0;
            auto one = [&](u32 n, u32 m) {
                t += low(n) * low(n) + high(n) * high(n);
                return pack(low(n) * low(m), high(n) * high(m));
            };
            y.x = one(v.x, w.x); y.y = one(v.y, w.y); y.z = one(v.z, w.z); y.w = one(v.w, w.w);
            *(uint4 *)&s.x[i * 8] = y;
            t = sum_of_warp(t);
            if (lane == 0) s.squares[warp] = t;
        }
        meet();
        float total = 0;
#pragma unroll
        for (int j = 0; j < HIDDEN / SEG; j++) {
            total += s.squares[j];
            held[j] = shared4(address(s.x) + j * 512 + lane * 16);
        }
        return rsqrtf(total / HIDDEN + EPS);
    }

    __device__ __forceinline__ float2 full_dot(u32 row0, u32 row1, const uint4 (&x)[HIDDEN / SEG]) {
        Dots dots;
#pragma unroll
        for (int j = 0; j < HIDDEN / SEG; j++) dots.add(row0 + j * 512, row1 + j * 512, x[j]);
        return dots.sum(lane);
    }

    // Each warp has pairs of rows of its own. `give(pair, dot)` takes what lane 0 holds.
    template <class Give>
    __device__ __forceinline__ void rows(int units, const uint4 (&x)[HIDDEN / SEG], Give give) {
        int p0 = block.first(units), count = block.last(units) - p0;
        for (int j = 0, p = 0; p < count; j++, p += QKV_PAIRS) {
            u32 base = enter();
            // QKV_PAIRS of the 16 warps have a pair of this slot.
            int mine = (warp - p) & (WARPS - 1);
            if (mine < QKV_PAIRS && p + mine < count) {
                u32 row = base + mine * 4 * HIDDEN;
                give(p0 + p + mine, full_dot(row, row + 2 * HIDDEN, x));
            }
            leave();
        }
    }

    __device__ __forceinline__ void gate_up(const uint4 (&x)[HIDDEN / SEG], float scale, u16 *out) {
        int p0 = block.first(INTER / 2), count = block.last(INTER / 2) - p0;
        for (int p = 0; p < count; p += GU_PAIRS) {
            u32 base = enter();
            int mine = (warp - p) & (WARPS - 1);
            if (mine < GU_PAIRS && p + mine < count) {
                u32 gate = base + mine * 4 * HIDDEN, up = gate + GU_PAIRS * 4 * HIDDEN;
                float2 one = full_dot(gate, up, x), two = full_dot(gate + 2 * HIDDEN, up + 2 * HIDDEN, x);
                auto act = [&](float2 v) { float g = v.x * scale; return g / (1 + __expf(-g)) * v.y * scale; };
                if (lane == 0) publish(out + (p0 + p + mine) * 2, pack(act(one), act(two)));
            }
            leave();
        }
    }

    // All warps share each pair of rows: a warp has segments of K, and reads its part of x itself. Adds to the residual.
    template <int K, int PAIRS, int PARTS>
    __device__ __forceinline__ void split(const u16 *x, u16 *out, u32 &residual, int row) {
        constexpr int SEGS = K / SEG;
        constexpr int HELD = (SEGS + WARPS - 1) / WARPS;
        constexpr int SLICES = SEGS < WARPS ? SEGS : WARPS;
        static_assert(HELD == 1 || PAIRS == 1, "");
        int p0 = block.first(HIDDEN / 2), count = block.last(HIDDEN / 2) - p0;
        int group = HELD == 1 ? warp / SEGS : 0, seg = HELD == 1 ? warp % SEGS : warp;
        uint4 held[HELD];
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (group < PAIRS && seg + i * WARPS < SEGS) held[i] = poll4(x + (seg + i * WARPS) * SEG + lane * 8);
        stamp(row, 0);
        if (PARTS == 1) {
            for (int p = 0; p < count; p += PAIRS) {
                u32 base = enter();
                bool mine = group < PAIRS && p + group < count;
                Dots dots;
                if (mine) {
#pragma unroll
                    for (int i = 0; i < HELD; i++)
                        if (seg + i * WARPS < SEGS) {
                            u32 at = base + group * 4 * K + (seg + i * WARPS) * 512;
                            dots.add(at, at + 2 * K, held[i]);
                        }
                }
                leave();
                if (mine) {
                    float2 v = dots.sum(lane);
                    if (lane == 0) {
                        s.partial[(p + group) * 32 + seg] = v.x;
                        s.partial[(p + group) * 32 + 16 + seg] = v.y;
                    }
                }
            }
        } else {
            constexpr int IN_PART = SEGS / PARTS;
            for (int p = 0; p < count; p++) {
                Dots dots;
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    u32 base = enter();
#pragma unroll
                    for (int i = 0; i < HELD; i++) {
                        int at = seg + i * WARPS - part * IN_PART;
                        if (at >= 0 && at < IN_PART) dots.add(base + at * 512, base + IN_PART * 512 + at * 512, held[i]);
                    }
                    leave();
                }
                float2 v = dots.sum(lane);
                if (lane == 0) {
                    s.partial[p * 32 + seg] = v.x;
                    s.partial[p * 32 + 16 + seg] = v.y;
                }
            }
        }
        meet();
        if (warp < count) {
            float v = (lane & 15) < SLICES ? s.partial[warp * 32 + lane] : 0;
#pragma unroll
            for (int d = 8; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
            float other = __shfl_xor_sync(~0u, v, 16);
            residual = pack(v + low(residual), other + high(residual));  // right in lanes 0 to 15
            if (lane == 0) publish(out + (p0 + warp) * 2, residual);
        }
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
    __device__ __forceinline__ void attention(int layer, int head, const u16 *qkv, u16 *out, int row) {
        int kv = head / GROUP, last = a.length - 1;
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
        u32 wa = poll(mine), wb = poll(mine + 64);
        stamp(row, 0);
        Head q = rotated(wa, wb, qa, qb, cosine, sine);
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
        if (warp == (last & (WARPS - 1))) {
            const u16 *key = qkv + Q_COLUMNS + kv * D + 2 * lane, *value = key + KVH * D;
            u32 k0 = poll(key), k1 = poll(key + 64), v0 = poll(value), v1 = poll(value + 64);
            Head k = rotated(k0, k1, ka, kb, cosine, sine);
            k0 = pack(k.a0, k.a1); k1 = pack(k.b0, k.b1);
            if (head % GROUP == 0) {
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
            publish(out + head * D + warp * 64 + 2 * lane, pack(x / sum, y / sum));
        }
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
        const u16 *hidden = a.embed + (size_t)*(volatile int *)a.token * HIDDEN;
        int pair = block.first(HIDDEN / 2) + warp;
        u32 residual = pair < block.last(HIDDEN / 2) ? constant_word(hidden + pair * 2) : 0;
        uint4 x[HIDDEN / SEG];
        for (int l = 0; l < LAYERS; l++) {
            u16 *qkv = set + (size_t)l * LAYER_HALVES, *mixed = qkv + QKV, *middle = mixed + Q_COLUMNS, *act = middle + HIDDEN, *out = act + INTER;
            float scale = normed(hidden, a.norm1 + l * HIDDEN, x);
            stamp(l * 5, 0);
            rows(QKV / 2, x, [&](int p, float2 v) { if (lane == 0) publish(qkv + p * 2, pack(v.x * scale, v.y * scale)); });
            stamp(l * 5, 1);
            if (block.b % (BLOCKS / QH) == 0 && block.b / (BLOCKS / QH) < QH) attention(l, block.b / (BLOCKS / QH), qkv, mixed, l * 5 + 1);
            split<Q_COLUMNS, O_PAIRS, 1>(mixed, middle, residual, l * 5 + 2);
            stamp(l * 5 + 2, 1);
            scale = normed(middle, a.norm2 + l * HIDDEN, x);
            stamp(l * 5 + 3, 0);
            gate_up(x, scale, act);
            stamp(l * 5 + 3, 1);
            split<INTER, 1, DOWN_PARTS>(act, out, residual, l * 5 + 4);
            stamp(l * 5 + 4, 1);
            hidden = out;
        }
        float scale = normed(hidden, a.norm, x);
        stamp(LAYERS * 5, 0);
        float best = -1e30f;
        int index = 0;
        rows(VOCAB / 2, x, [&](int p, float2 v) {
            if (v.x * scale > best) best = v.x * scale, index = 2 * p;
            if (v.y * scale > best) best = v.y * scale, index = 2 * p + 1;
        });
        choose(best, index, (u64 *)(set + (size_t)LAYERS * LAYER_HALVES));
        stamp(LAYERS * 5, 1);
    }

    // What the ring alone can: every slot is let go as it comes.
    __device__ __forceinline__ void drain() {
        walk(a, block, [](int, const u16 *, int) {}, [&](int) { enter(); leave(); });
    }
};

extern "C" __global__ void __launch_bounds__(CONSUMERS + 64, 1) decode(const __grid_constant__ Arguments a) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared &s = *(Shared *)(memory + SLOT * SLOTS);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address(&s.full[i])) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(address(&s.empty[i])), "n"(WARPS) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        s.issued = 0;
    }
    __syncthreads();
    Block block = {(int)blockIdx.x};
    if (warp < WARPS) {
        Consumer consumer = {a, s, memory, block, warp, lane, {}};
        if (HOPS == 0 && MATH == 0) consumer.drain();
        else consumer.step();
    } else if (warp == WARPS) {
        if (lane == 0) produce(a, block, s, memory);
#if AHEAD
    } else if (lane == 0 && block.b >= 0) {
        prefetch(a, block, s);
#endif
    }
    if (warp == WARPS + 1) {  // the other step's set is made empty
        uint4 *other = (uint4 *)(a.sets + (size_t)(a.parity ^ 1) * SET_HALVES);
        for (int i = block.b * 32 + lane; i < SET_HALVES / 8; i += BLOCKS * 32) other[i] = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY);
    }
}

extern "C" __global__ void size_of_shared(int *out) { *out = SLOT * SLOTS + sizeof(Shared); }
