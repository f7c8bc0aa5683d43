"""The parts of a C launcher that are the same for every bundle: types for the header, functions for the source."""

from __future__ import annotations

from typing import Final

HEADER: Final = """\
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef TILEC_LAUNCHER_TYPES
#define TILEC_LAUNCHER_TYPES
/* A stream of CUDA: what its driver calls CUstream and its runtime cudaStream_t. NULL is the default stream. */
typedef struct CUstream_st *tilec_stream;
/* An address in device memory, what the driver calls CUdeviceptr. */
typedef uint64_t tilec_pointer;
/* What is wrong; `tilec explain E0908` tells about 908. */
enum tilec_status {
    TILEC_OK = 0,
    TILEC_E0902 = 902, /* the code is for another architecture */
    TILEC_E0906 = 906, /* an extent is out of range */
    TILEC_E0907 = 907, /* elements of a tensor overlap */
    TILEC_E0908 = 908, /* a base is not aligned */
    TILEC_E0909 = 909, /* two tensors overlap */
    TILEC_E0910 = 910, /* a precondition does not hold, or cannot be computed in 64 bits */
    TILEC_E0911 = 911, /* the grid is out of range */
    TILEC_E0913 = 913, /* nothing is known of the values stored in a tensor */
    TILEC_E0914 = 914, /* a tensor has no memory */
    TILEC_E0915 = 915, /* the driver refused, or is missing */
    TILEC_E0916 = 916  /* the device has less shared memory */
};
/* The values stored in a tensor are what the contract asks for: the caller vouches for them. */
#define TILEC_TRUSTED 1
#endif
"""

SOURCE: Final = r"""
#include <dlfcn.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILEC_TRY(call) do { int tilec_status = (call); if (tilec_status != 0) return tilec_status; } while (0)
#define TILEC_PRIVATE static __attribute__((unused))
#define TILEC_MAX_DIM INT64_C(2147418112)
enum { TILEC_MAJOR = 75, TILEC_MINOR = 76, TILEC_SHARED_OPTIN = 97, TILEC_MULTIPROCESSORS = 16, TILEC_DYNAMIC_SHARED = 8 };

/* As much of libcuda as is used, by the names that the driver API has since CUDA 4. */
typedef struct {
    void *library;
    int (*init)(unsigned);
    int (*get_device)(int *);
    int (*attribute)(int *, int, int);
    int (*load)(void **, const void *);
    int (*unload)(void *);
    int (*function)(void **, void *, const char *);
    int (*set)(void *, int, int);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*error_name)(int, const char **);
} tilec_driver;

typedef struct {
    const char *kernel, *entry;
    int image, dynamic_shared, static_shared;
} tilec_kernel;

static _Thread_local char tilec_text[1024];

__attribute__((format(printf, 3, 4)))
static int tilec_refuse(int code, const char *kernel, const char *form, ...) {
    int length = snprintf(tilec_text, sizeof tilec_text, "error[E%04d]: ", code);
    if (kernel != NULL)
        length += snprintf(tilec_text + length, sizeof tilec_text - (size_t)length, "kernel `%.200s`, ", kernel);
    va_list arguments;
    va_start(arguments, form);
    vsnprintf(tilec_text + length, sizeof tilec_text - (size_t)length, form, arguments);
    va_end(arguments);
    return code;
}

static int tilec_failed(const tilec_driver *driver, const char *kernel, const char *call, int code) {
    const char *name = NULL;
    if (driver->error_name(code, &name) != 0 || name == NULL)
        return tilec_refuse(915, kernel, "`%s` failed with CUresult %d", call, code);
    return tilec_refuse(915, kernel, "`%s` failed with %s", call, name);
}

/* POSIX gives functions of a library as pointers to data. */
static int tilec_find(void *library, const char *name, void *place) {
    void *found = dlsym(library, name);
    if (found == NULL)
        return tilec_refuse(915, NULL, "libcuda has no `%s`", name);
    memcpy(place, &found, sizeof found);
    return 0;
}

static int tilec_open(tilec_driver *driver) {
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver->library == NULL)
        return tilec_refuse(915, NULL, "no NVIDIA driver on this machine (libcuda.so.1)");
    const struct {
        const char *name;
        void *place;
    } wanted[] = {
        {"cuInit", &driver->init},
        {"cuCtxGetDevice", &driver->get_device},
        {"cuDeviceGetAttribute", &driver->attribute},
        {"cuModuleLoadData", &driver->load},
        {"cuModuleUnload", &driver->unload},
        {"cuModuleGetFunction", &driver->function},
        {"cuFuncSetAttribute", &driver->set},
        {"cuLaunchKernel", &driver->launch},
        {"cuGetErrorName", &driver->error_name},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (tilec_find(driver->library, wanted[i].name, wanted[i].place) != 0)
            return 915;
    int code = driver->init(0);
    return code == 0 ? 0 : tilec_failed(driver, NULL, "cuInit", code);
}

static int tilec_check_device(const tilec_driver *driver, const int (*capabilities)[2], const char *named, int *shared,
    int *multiprocessors) {
    int device = 0, found_major = 0, found_minor = 0;
    int code = driver->get_device(&device);
    if (code != 0)
        return tilec_failed(driver, NULL, "cuCtxGetDevice", code);
    code = driver->attribute(&found_major, TILEC_MAJOR, device);
    if (code == 0)
        code = driver->attribute(&found_minor, TILEC_MINOR, device);
    if (code == 0)
        code = driver->attribute(shared, TILEC_SHARED_OPTIN, device);
    if (code == 0)
        code = driver->attribute(multiprocessors, TILEC_MULTIPROCESSORS, device);
    if (code != 0)
        return tilec_failed(driver, NULL, "cuDeviceGetAttribute", code);
    for (int i = 0; capabilities[i][0] != 0; i++)
        if (found_major == capabilities[i][0] && found_minor == capabilities[i][1])
            return 0;
    return tilec_refuse(902, NULL, "the code is for compute capability %s, the device has %d.%d", named, found_major,
        found_minor);
}

static int tilec_load(const tilec_driver *driver, const tilec_kernel *kernel, const void *image, int most,
    void **module, void **function) {
    const long wanted = (long)kernel->dynamic_shared + kernel->static_shared;
    if (wanted > most)
        return tilec_refuse(916, kernel->kernel, "needs %ld bytes of shared memory, the device has %d", wanted, most);
    int code = *module == NULL ? driver->load(module, image) : 0;
    if (code != 0)
        return tilec_failed(driver, kernel->kernel, "cuModuleLoadData", code);
    code = driver->function(function, *module, kernel->entry);
    if (code != 0)
        return tilec_failed(driver, kernel->kernel, "cuModuleGetFunction", code);
    if (kernel->dynamic_shared > 48 * 1024)
        code = driver->set(*function, TILEC_DYNAMIC_SHARED, kernel->dynamic_shared);
    return code == 0 ? 0 : tilec_failed(driver, kernel->kernel, "cuFuncSetAttribute", code);
}

/* An integer of a launch: a scalar of int64_t or uint64_t, or what is computed from some. */
__extension__ typedef __int128 tilec_integer;

/* Where a computation went wrong: beyond 64 bits (signed, or unsigned from 2^63 on), or by a zero divisor. */
typedef struct {
    int wide, zero;
} tilec_fault;

TILEC_PRIVATE tilec_integer tilec_checked(tilec_fault *at, tilec_integer value) {
    at->wide |= value < INT64_MIN || value > (tilec_integer)UINT64_MAX;
    return value;
}

TILEC_PRIVATE tilec_integer tilec_sum(tilec_fault *at, tilec_integer a, tilec_integer b) {
    return at->wide ? 0 : tilec_checked(at, a + b);
}

TILEC_PRIVATE tilec_integer tilec_difference(tilec_fault *at, tilec_integer a, tilec_integer b) {
    return at->wide ? 0 : tilec_checked(at, a - b);
}

TILEC_PRIVATE tilec_integer tilec_product(tilec_fault *at, tilec_integer a, tilec_integer b) {
    tilec_integer result;
    at->wide |= __builtin_mul_overflow(a, b, &result);
    return at->wide ? 0 : tilec_checked(at, result);
}

/* Division rounds toward minus infinity, and a remainder has the sign of its divisor, as in Python. */
TILEC_PRIVATE tilec_integer tilec_quotient(tilec_fault *at, tilec_integer a, tilec_integer b) {
    if (b == 0 || at->wide) {
        at->zero |= b == 0;
        return 0;
    }
    return tilec_checked(at, a / b - (a % b != 0 && (a % b < 0) != (b < 0)));
}

TILEC_PRIVATE tilec_integer tilec_remainder(tilec_fault *at, tilec_integer a, tilec_integer b) {
    if (b == 0 || at->wide) {
        at->zero |= b == 0;
        return 0;
    }
    tilec_integer result = a % b;
    return result != 0 && (result < 0) != (b < 0) ? result + b : result;
}

TILEC_PRIVATE tilec_integer tilec_min(tilec_fault *at, tilec_integer a, tilec_integer b) {
    (void)at;
    return a < b ? a : b;
}

TILEC_PRIVATE tilec_integer tilec_max(tilec_fault *at, tilec_integer a, tilec_integer b) {
    (void)at;
    return a > b ? a : b;
}

TILEC_PRIVATE int tilec_faulty(tilec_fault at, const char *kernel, const char *what) {
    if (at.zero)
        return tilec_refuse(910, kernel, "%s divides by zero", what);
    return at.wide ? tilec_refuse(910, kernel, "%s does not fit 64 bits", what) : 0;
}

TILEC_PRIVATE int tilec_check_extent(const char *kernel, const char *name, int64_t value) {
    if (value >= 1 && value <= TILEC_MAX_DIM)
        return 0;
    return tilec_refuse(906, kernel, "argument `%s`: out of range; given %" PRId64 ", required 1 to %" PRId64, name, value,
        TILEC_MAX_DIM);
}

/* A tensor: its axes (strides are in elements; NULL: row-major), bytes of an element and of all, the last byte. */
typedef struct {
    const char *name;
    tilec_pointer pointer;
    int rank, item, alignment, written;
    const int64_t *extents, *strides;
    int64_t bytes;
    tilec_pointer last;
} tilec_tensor;

/* Ownership is proven per element, so two elements of a tensor that is written must not share memory: each stride is beyond
   what the axes of smaller strides span. */
TILEC_PRIVATE int tilec_check_strides(const char *kernel, const tilec_tensor *tensor) {
    for (int i = 0; i < tensor->rank; i++) {
        tilec_fault at = {0, 0};
        int64_t stride = tensor->strides[i], reach = 1;
        for (int j = 0; j < tensor->rank; j++)
            if (tensor->strides[j] < stride || (tensor->strides[j] == stride && j < i))
                reach = tilec_sum(&at, reach, tilec_product(&at, tensor->strides[j], tensor->extents[j] - 1));
        if (tensor->extents[i] > 1 && (at.wide || stride < reach))
            return tilec_refuse(907, kernel,
                "argument `%s`: elements overlap in memory; given stride %" PRId64 " on axis %d",
                                tensor->name, stride, i);
    }
    return 0;
}

TILEC_PRIVATE int tilec_check_extents(const char *kernel, const tilec_tensor *tensor) {
    if (tensor->pointer == 0)
        return tilec_refuse(914, kernel, "argument `%s`: the tensor has no memory; given address 0x0", tensor->name);
    for (int i = 0; i < tensor->rank; i++)
        TILEC_TRY(tilec_check_extent(kernel, tensor->name, tensor->extents[i]));
    return 0;
}

/* Strides, and the bytes that the tensor has. */
TILEC_PRIVATE int tilec_check_layout(const char *kernel, tilec_tensor *tensor) {
    tilec_fault at = {0, 0};
    int64_t last = 0;
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->strides == NULL)
            last = tilec_sum(&at, tilec_product(&at, last, tensor->extents[i]), tensor->extents[i] - 1);
        else
            last = tilec_sum(&at, last, tilec_product(&at, tensor->extents[i] - 1, tensor->strides[i]));
        if (tensor->strides != NULL && tensor->strides[i] < 0)
            return tilec_refuse(907, kernel, "argument `%s`: the stride of axis %d is negative", tensor->name, i);
    }
    if (tensor->written && tensor->strides != NULL)
        TILEC_TRY(tilec_check_strides(kernel, tensor));
    tensor->bytes = tilec_product(&at, tilec_sum(&at, last, 1), tensor->item);
    if (at.wide)
        return tilec_refuse(906, kernel, "argument `%s`: the tensor is too large to address", tensor->name);
    return 0;
}

TILEC_PRIVATE int tilec_check_place(const char *kernel, tilec_tensor *tensor) {
    if (tensor->pointer % (uint64_t)tensor->alignment != 0)
        return tilec_refuse(908, kernel,
                            "argument `%s`: the base is not aligned; given address 0x%" PRIx64 ", required a multiple of %d",
                            tensor->name, tensor->pointer, tensor->alignment);
    if (__builtin_add_overflow(tensor->pointer, (uint64_t)tensor->bytes - 1, &tensor->last))
        return tilec_refuse(914, kernel, "argument `%s`: the tensor reaches outside of memory; given address 0x%" PRIx64,
                            tensor->name, tensor->pointer);
    return 0;
}

TILEC_PRIVATE int tilec_check_apart(const char *kernel, const tilec_tensor *a, const tilec_tensor *b) {
    if (a->pointer <= b->last && b->pointer <= a->last)
        return tilec_refuse(909, kernel, "argument `%s`: overlaps `%s` in memory", a->name, b->name);
    return 0;
}

TILEC_PRIVATE int tilec_check_grid(const char *kernel, int axis, int64_t blocks) {
    int64_t most = axis == 0 ? INT64_C(2147483647) : 65535;
    if (blocks >= 1 && blocks <= most)
        return 0;
    return tilec_refuse(911, kernel, "grid axis %d is out of range; given %" PRId64 ", required 1 to %" PRId64 " blocks",
        axis, blocks, most);
}
"""
