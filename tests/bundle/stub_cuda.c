/* As much of libcuda as a launcher in C asks for: memory is the host's, launches are remembered, and calls fail where they are told
 * to. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 32, MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76, SHARED = 97 };

struct {
    int launches, loads, unloads;
    int capability[2], shared_limit;
    char failing[64];
    unsigned grid[3], block[3], shared;
    void *stream;
    char function[64];
    int dynamic_shared;
    unsigned sizes[MOST];
    unsigned char arguments[MOST][8];
} stub = {.capability = {9, 0}, .shared_limit = 232448};

static int answer(const char *call) {
    return strcmp(stub.failing, call) == 0 ? 700 : 0;
}

int cuInit(unsigned flags) {
    return flags == 0 ? answer("cuInit") : 1;
}

int cuGetErrorName(int code, const char **name) {
    *name = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : NULL;
    return code == 700 ? 0 : 1;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = device == 0 ? &stub : NULL;
    return 0;
}

int cuCtxSetCurrent(void *context) {
    return context == &stub ? 0 : 1;
}

int cuCtxGetDevice(int *device) {
    *device = 0;
    return answer("cuCtxGetDevice");
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case MULTIPROCESSORS: *value = 132; break;
    case MAJOR: *value = stub.capability[0]; break;
    case MINOR: *value = stub.capability[1]; break;
    case SHARED: *value = stub.shared_limit; break;
    default: return 1;
    }
    return device == 0 ? 0 : 1;
}

int cuModuleLoadData(void **module, const void *image) {
    if (memcmp(image, "\177ELF", 4) != 0)
        return 200;
    stub.loads++;
    *module = (void *)(uintptr_t)image;
    return answer("cuModuleLoadData");
}

int cuModuleUnload(void *module) {
    stub.unloads++;
    return module != NULL ? 0 : 1;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = calloc(1, 64);
    strncpy(*function, name, 63);
    return module != NULL ? answer("cuModuleGetFunction") : 1;
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
    stub.dynamic_shared = value;
    return function != NULL && attribute == 8 ? 0 : 1;
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared, void *stream,
                   void **arguments, void **extra) {
    int code = answer("cuLaunchKernel");
    if (code != 0 || extra != NULL)
        return code;
    memcpy(stub.grid, (unsigned[]){x, y, z}, sizeof stub.grid);
    memcpy(stub.block, (unsigned[]){a, b, c}, sizeof stub.block);
    stub.shared = shared;
    stub.stream = stream;
    strncpy(stub.function, function, sizeof stub.function - 1);
    for (int i = 0; i < MOST && stub.sizes[i] != 0; i++)
        memcpy(stub.arguments[i], arguments[i], stub.sizes[i]);
    stub.launches++;
    return 0;
}

int cuMemAlloc_v2(uint64_t *pointer, size_t size) {
    *pointer = (uint64_t)(uintptr_t)aligned_alloc(256, (size + 255) / 256 * 256);
    return 0;
}

int cuMemcpyHtoD_v2(uint64_t pointer, const void *host, size_t size) {
    memcpy((void *)(uintptr_t)pointer, host, size);
    return 0;
}

int cuMemcpyDtoH_v2(void *host, uint64_t pointer, size_t size) {
    memcpy(host, (const void *)(uintptr_t)pointer, size);
    return 0;
}
