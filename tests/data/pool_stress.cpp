// Random jobs of loops whose result depends on their order, on `argv[1]` threads, `argv[2]` times; each compared with one
// thread's own.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "pool.h"

int main(int, char** argv) {
    constexpr int WIDTH = 600;
    bosquet::Pool pool(atoi(argv[1]), {});
    unsigned seed = 1;
    std::vector<int> seen(WIDTH), expected(WIDTH);
    for (int job = 0; job < atoi(argv[2]); job++) {
        std::vector<int> sizes(rand_r(&seed) % 20), grains(sizes.size());
        for (int& size : sizes) size = rand_r(&seed) % WIDTH;
        for (int& grain : grains) grain = 1 + rand_r(&seed) % 70;
        seen.assign(WIDTH, 0), expected.assign(WIDTH, 0);
        for (size_t loop = 0; loop < sizes.size(); loop++)
            for (int i = 0; i < sizes[loop]; i++) expected[i] = expected[i] * 3 + (int)loop + 1;
        pool.run([&](bosquet::Team& team) {
            for (size_t loop = 0; loop < sizes.size(); loop++) {
                const auto body = [&](int64_t i) { seen[i] = seen[i] * 3 + (int)loop + 1; };
                if (grains[loop] % 4 == 0) team.fetch(expected.data(), WIDTH * sizeof(int));
                if (grains[loop] % 2)
                    team.each(sizes[loop], grains[loop], body);
                else
                    team.guided(sizes[loop], grains[loop], [&](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; i++) body(i);
                    });
            }
        });
        if (seen != expected) return printf("job %d\n", job), 1;
        timespec pause{0, 200'000};  // longer than a member spins
        if (job % 50 == 0) nanosleep(&pause, nullptr);
    }
}
