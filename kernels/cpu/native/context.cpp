#include "context.h"

using bosquet::Context;

BOSQUET_EXPORT void* bosquet_create(int threads, const int* cpus, int count) {
    return new Context(threads, std::vector<int>(cpus, cpus + count));
}

BOSQUET_EXPORT void bosquet_destroy(void* context) { delete (Context*)context; }
