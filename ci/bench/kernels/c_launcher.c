/* Runs `add` and `rms_norm` of a bundle from C: `c_launcher FOLDER` reads x, y and weight (bf16) from files of FOLDER and writes
 * sum and normed beside them. The launcher is the one that `tilec bundle launcher --prefix layer` makes; the bundle is that of
 * `ci/bench/kernels.py torch_ops --build`. Exit status 1 where anything fails, or where a launch that must be refused is not.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layer.h"

enum { ROWS = 37, HIDDEN = 1024, BYTES = 2 * ROWS * HIDDEN };

static void *cuda(const char *name) {
    static void *library;
    if (library == NULL)
        library = dlopen("libcuda.so.1", RTLD_NOW);
    void *found = library == NULL ? NULL : dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "no `%s` in libcuda.so.1\n", name);
        exit(1);
    }
    return found;
}

static int call(const char *name, int status) {
    if (status != 0) {
        fprintf(stderr, "`%s` failed with %d\n", name, status);
        exit(1);
    }
    return status;
}

/* Functions of the driver by name; POSIX gives them as pointers to data. */
#define CUDA(name, parameters, ...) \
    do { \
        int(*function) parameters; \
        void *found = cuda(name); \
        memcpy(&function, &found, sizeof found); \
        call(name, function(__VA_ARGS__)); \
    } while (0)

static tilec_pointer device_copy(const void *bytes, size_t size) {
    tilec_pointer place = 0;
    CUDA("cuMemAlloc_v2", (tilec_pointer *, size_t), &place, size);
    if (bytes != NULL)
        CUDA("cuMemcpyHtoD_v2", (tilec_pointer, const void *, size_t), place, bytes, size);
    return place;
}

static void file(const char *folder, const char *name, const char *mode, void *bytes, size_t size) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *stream = fopen(path, mode);
    size_t done = stream == NULL ? 0 : *mode == 'r' ? fread(bytes, 1, size, stream) : fwrite(bytes, 1, size, stream);
    if (done != size || fclose(stream) != 0) {
        fprintf(stderr, "cannot use `%s`\n", path);
        exit(1);
    }
}

static void expect(int status, int wanted) {
    if (status != wanted) {
        fprintf(stderr, "status %d where %d is right: %s\n", status, wanted, layer_error());
        exit(1);
    }
    if (wanted != TILEC_OK)
        puts(layer_error());
}

int main(int count, char **arguments) {
    static uint16_t x[ROWS * HIDDEN], y[ROWS * HIDDEN], weight[HIDDEN], out[ROWS * HIDDEN];
    if (count != 2)
        return 1;
    const char *folder = arguments[1];
    file(folder, "x", "rb", x, sizeof x);
    file(folder, "y", "rb", y, sizeof y);
    file(folder, "weight", "rb", weight, sizeof weight);
    void *context = NULL;
    int device = 0;
    CUDA("cuInit", (unsigned), 0);
    CUDA("cuDeviceGet", (int *, int), &device, 0);
    CUDA("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
    CUDA("cuCtxSetCurrent", (void *), context);

    layer_kernels *kernels = NULL;
    expect(layer_load(&kernels), TILEC_OK);
    tilec_pointer x_place = device_copy(x, sizeof x), y_place = device_copy(y, sizeof y);
    tilec_pointer weight_place = device_copy(weight, sizeof weight), out_place = device_copy(NULL, BYTES);

    expect(layer_add_E_bf16_BLOCK_2048(kernels, NULL, x_place, y_place, out_place, ROWS * HIDDEN), TILEC_OK);
    CUDA("cuMemcpyDtoH_v2", (void *, tilec_pointer, size_t), out, out_place, sizeof out);
    file(folder, "sum", "wb", out, sizeof out);
    expect(layer_rms_norm_E_bf16_H_1024(kernels, NULL, x_place, weight_place, out_place, ROWS, 1e-6f), TILEC_OK);
    CUDA("cuMemcpyDtoH_v2", (void *, tilec_pointer, size_t), out, out_place, sizeof out);
    file(folder, "normed", "wb", out, sizeof out);

    expect(layer_add_E_bf16_BLOCK_2048(kernels, NULL, x_place + 2, y_place, out_place, HIDDEN), TILEC_E0908);
    expect(layer_add_E_bf16_BLOCK_2048(kernels, NULL, x_place, y_place, x_place, HIDDEN), TILEC_E0909);
    expect(layer_add_E_bf16_BLOCK_2048(kernels, NULL, x_place, 0, out_place, HIDDEN), TILEC_E0914);
    expect(layer_rms_norm_E_bf16_H_1024(kernels, NULL, x_place, weight_place, out_place, 0, 1e-6f), TILEC_E0906);
    layer_unload(kernels);
    return 0;
}
