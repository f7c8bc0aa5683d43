// A decode step of a dense Qwen3 model in one kernel: a measuring instrument beside the chain of launches, not a product.
//
// One block per multiprocessor stays for the whole step. One of its threads streams the block's rows of every product through a
// ring in shared memory, in the order of use, and does not wait for activations, so the ring fills while others wait.
// Activations cross blocks without a flag or a barrier: every word is written once a step into memory that was filled with the
// bf16 pattern 0xffff, which no rounding makes, and whoever needs a word reads it until it is another. No sum goes through an
// atomic, and each has one order: results are deterministic.
//
// A slot of the ring holds GROUP items at most. An item is two rows, or a slice of K of two rows, which one warp multiplies by
// x. Lane l of a warp holds 8 numbers of x where it reads 8 weights, 512 bytes to a warp. Two rows are the 16 rows of
// `mma.m16n8k16`, each cut into 8 slices of K; the 8 columns of B are x's slices; the diagonal of D holds the slices' dot
// products.
//
// Set by -D: HIDDEN, LAYERS, QH, KVH, INTER, VOCAB, SLOTS of the ring, GROUP, FLIGHT (slots under way at once), and what a
// variant has: HOPS (0: nobody waits for an activation), MATH (0 with HOPS 0: nor is anything multiplied), WEIGHTS (0: none are
// read), COPIES (of activations; blocks read different ones), HINT (1: a warp first waits for a word of each block that says it
// is done), PAUSE (ns between two reads of a word that is not there), BRING (1: activations, norms and caches come into the L2
// cache two layers ahead), STAMPS (1: times of phases), PROBE (1: a thread times reads of the L2 cache).

#include "persistent_ring.cuh"

// A warp of those that multiply.
struct Consumer {
    const Arguments &a;
    Shared &s;
    unsigned char *ring;
    Block block;
    int warp, lane;
    u32 group = 0;    // of the first item of this phase
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
            u32 i = group + n / Layout::EACH, slot = i % SLOTS, j = n % Layout::EACH;
            u32 at = address(ring) + slot * SLOT + lane * 16;
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

    // Says that this block's warps, of which each calls it, have written what they have of a phase. Nothing is ordered by it:
    // who sees it looks at the words themselves, but need not look before.
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
            if (HINT)
                lines(a.sets + c * COPY_HALVES + (size_t)a.parity * SET_HALVES + (size_t)LAYERS * LAYER_HALVES + 1024 +
                          layer * 5 * HINTS, HINTS * 10);
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
    __device__ __forceinline__ float stage(
        u16 *to, const u16 *from, const u16 *weight, int slice, uint4 (&x)[SEGS], const u32 *hints, int stride = 1) {
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
    __device__ __forceinline__ void split(
        const u16 *from, u16 *out, u32 &residual, uint4 (&x)[SEGS], int row, const u32 *before, int stride, u32 *after) {
        constexpr int SLICES = slices(K);
        // Warps that share a slice of x: with 3 slices there are no more items than warps, so a warp keeps its slice.
        static_assert(WARPS % SLICES == 0 || MOST_PAIRS * SLICES <= WARPS, "");
        int p0 = block.first(HIDDEN / 2), count = block.last(HIDDEN / 2) - p0, slice = warp % SLICES;
        stage<K, false>(s.wide, from, nullptr, slice, x, before, stride);
        stamp(row, 0);
        items<Split<K>, K % HIDDEN == 0>(count * SLICES, K / SEG - slice * SEGS, x, [&](int n, float2 v) {
            if (lane == 0) s.partial[n] = v;
        });
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

    // One head of queries in this block; warps take slots in turns, and the last slot is this step's own.
    __device__ __forceinline__ void attention(int layer, int head, const u16 *qkv, u16 *out, int row, u32 *hints) {
        int kv = head / SHARING, last = a.length - 1;
        const u16 *keys = a.k_cache + ((size_t)layer * a.slots * KVH + kv) * D;
        const u16 *values = a.v_cache + ((size_t)layer * a.slots * KVH + kv) * D;
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
            float score = sum_of_warp(q.a0 * low(k0) + q.a1 * high(k0) + q.b0 * low(k1) + q.b1 * high(k1));
            score *= 0.08838834764831845f;  // 1 / sqrt(D)
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
            take(*(u32 *)(keys + at), *(u32 *)(keys + at + 64), *(u32 *)(values + at), *(u32 *)(values + at + 64));
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
            for (int c = 0; c < COPIES; c++)
                write(out + c * COPY_HALVES + head * D + warp * 64 + 2 * lane, pack(x / sum, y / sum));
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
            u16 *qkv = set + (size_t)l * LAYER_HALVES, *mixed = qkv + QKV, *middle = mixed + Q_COLUMNS;
            u16 *act = middle + HIDDEN, *out = act + INTER;
            float scale = stage<HIDDEN, true>(s.x, hidden, a.norm1 + l * HIDDEN, 0, x, before);
            stamp(l * 5, 0);
            int first = block.first(QKV / 2);
            items<Pairs, true>(block.last(QKV / 2) - first, SEGS, x, [&](int n, float2 v) {
                publish(qkv + (first + n) * 2, pack(v.x * scale, v.y * scale), lane);
            });
            stamp(l * 5, 1);
            if (block.b % APART == 0 && block.b / APART < QH)
                attention(l, block.b / APART, qkv + copy, mixed, l * 5 + 1, hints);
            split<Q_COLUMNS>(mixed + copy, middle, residual, x, l * 5 + 2, seen, APART, hints + HINTS / 2 * 2);
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

extern "C" __global__ void __launch_bounds__(CONSUMERS + OTHERS * 32, 1) decode(const __grid_constant__ Arguments a) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared &s = *(Shared *)(memory + SLOT * SLOTS);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address(&s.full[i])) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(address(&s.empty[i])), "n"(GROUP) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int i = 0; i < OTHERS; i++) s.issued[i] = 0;
        s.done = 0;
    }
    __syncthreads();
    Block block = {(int)blockIdx.x};
    if (warp < WARPS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
        Consumer consumer = {a, s, memory, block, warp, lane};
        HOPS == 0 && MATH == 0 ? consumer.drain() : consumer.step();
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (WEIGHTS && lane == 0 && warp < WARPS + ASKERS) produce(a, block, s, memory, warp - WARPS);
#if PROBE  // how long a read of a word in the L2 cache takes meanwhile
        if (warp == WARPS + OTHERS - 1 && lane == 0) {
            u32 count = 0, most = 0, sum = 0, began;
            u64 end = now() + 200000;
            while (now() < end) {
                began = clock();
                if (read_once(a.read_cycles + block.b * 32) == 7) count++;  // never; but the clock waits for the word
                u32 took = clock() - began;
                sum += took, most = max(most, took), count++;
            }
            a.read_cycles[block.b * 32 + 16] = sum / count, a.read_cycles[block.b * 32 + 17] = most;
        }
#endif
        __syncwarp();
        // The other step's set is made empty.
        uint4 *other = (uint4 *)(a.sets + (size_t)(a.parity ^ 1) * SET_HALVES);
        for (int c = 0; c < COPIES; c++)
            for (int i = block.b * OTHERS * 32 + threadIdx.x - CONSUMERS; i < SET_HALVES / 8; i += BLOCKS * OTHERS * 32)
                other[c * (COPY_HALVES / 8) + i] = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY);
    }
}

extern "C" __global__ void size_of_shared(int *out) { *out = SLOT * SLOTS + sizeof(Shared); }
