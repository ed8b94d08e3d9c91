// AVX-512 once more, for machines on which denormal numbers cost no time.
#define DENORMALS
#include "kernels_avx512.cpp"
