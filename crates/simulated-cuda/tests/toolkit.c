/* A program that uses each library of a CUDA toolkit. It prints what it found, one fact a line, and ends with 1 at the first failure. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(handle *, int), cuCtxSetCurrent(handle);
int cublasCreate_v2(handle *), cublasDestroy_v2(handle);
int curandCreateGenerator(handle *, unsigned), curandDestroyGenerator(handle);
int cudnnCreate(handle *), cudnnDestroy(handle);
int nvrtcVersion(int *, int *);
void *__cudaRegisterFatBinary(void *);
int cublasLtCreate(handle *);

static void check(const char *what, int status) {
    if (status != 0) {
        printf("%s: %d\n", what, status);
        exit(1);
    }
}

int main(void) {
    handle context, blas, generator, dnn;
    int major = 0, minor = 0;
    check("cuInit", cuInit(0));
    check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    check("cublasCreate", cublasCreate_v2(&blas));
    check("curandCreateGenerator", curandCreateGenerator(&generator, 100));
    check("cudnnCreate", cudnnCreate(&dnn));
    check("nvrtcVersion", nvrtcVersion(&major, &minor));
    check("__cudaRegisterFatBinary", __cudaRegisterFatBinary(NULL) == NULL);
    /* Not modelled, so that it must not be called. Volatile, because the compiler may otherwise leave the name out. */
    int (*volatile create)(handle *) = cublasLtCreate;
    check("cublasLtCreate", create == NULL);
    check("cudnnDestroy", cudnnDestroy(dnn));
    check("curandDestroyGenerator", curandDestroyGenerator(generator));
    check("cublasDestroy", cublasDestroy_v2(blas));
    printf("nvrtc %d.%d\n", major, minor);

    /* The code of every NVIDIA library in this process. */
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    check("maps", maps == NULL);
    while (fgets(line, sizeof line, maps))
        if (strstr(line, " r-xp ") && (strstr(line, "/libcu") || strstr(line, "/libnv")))
            printf("code %s", strrchr(line, '/') + 1);
    return 0;
}
