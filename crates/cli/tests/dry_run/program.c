// A program of CUDA's driver interface: `program WHAT…` does one thing after another on device 0, as its arguments say.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(void **, int);
CUresult cuCtxSetCurrent(void *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
CUresult cuGraphLaunch(void *, void *);

static void check(const char *what, CUresult status) {
    if (status != 0) {
        fprintf(stderr, "%s: status %d\n", what, status);
        exit(9);
    }
}

int main(int count, char **arguments) {
    void *context;
    CUdeviceptr last = 0;
    check("init", cuInit(0));
    check("retain", cuDevicePrimaryCtxRetain(&context, 0));
    check("set", cuCtxSetCurrent(context));
    // What a library of CUDA takes at first.
    check("allocate", cuMemAlloc_v2(&last, 512));
    for (int index = 1; index < count; index++) {
        const char *what = arguments[index];
        const char *value = index + 1 < count ? arguments[index + 1] : "";
        if (strcmp(what, "hold") == 0) {
            check("hold", cuMemAlloc_v2(&last, strtoull(value, 0, 10) << 20));
            index++;
        } else if (strcmp(what, "try") == 0) {
            printf("try: %d\n", cuMemAlloc_v2(&last, strtoull(value, 0, 10) << 20));
            index++;
        } else if (strcmp(what, "many") == 0) {
            for (int more = 0; more < 20; more++)
                check("many", cuMemAlloc_v2(&last, 512));
        } else if (strcmp(what, "abort") == 0) {
            abort();
        } else if (strcmp(what, "free") == 0) {
            check("free", cuMemFree_v2(last));
        } else if (strcmp(what, "total") == 0) {
            size_t free_bytes, total;
            check("total", cuMemGetInfo_v2(&free_bytes, &total));
            printf("total: %zu, free: %zu\n", total >> 20, free_bytes >> 20);
        } else if (strcmp(what, "read") == 0) {
            char byte = 1;
            check("read", cuMemcpyDtoH_v2(&byte, last, 1));
            printf("read: %d\n", byte);
        } else if (strcmp(what, "graph") == 0) {
            cuGraphLaunch(0, 0);
        } else if (strcmp(what, "open") == 0) {
            if (dlopen(value, RTLD_NOW | RTLD_LOCAL) == 0)
                exit(8);
            index++;
        } else if (strcmp(what, "fork") == 0) {
            pid_t child = fork();
            if (child == 0)
                _exit(cuMemAlloc_v2(&last, 512) == 0);
            int status;
            waitpid(child, &status, 0);
        } else if (strcmp(what, "sleep") == 0) {
            sleep(600);
        } else if (strcmp(what, "exit") == 0) {
            exit(atoi(value));
        }
    }
    return 0;
}
