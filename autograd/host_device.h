// Marks functions that both backends compile. Not installed.
#pragma once

#if defined(__CUDACC__)
#define FUSEGRAD_HOST_DEVICE __host__ __device__
#else
#define FUSEGRAD_HOST_DEVICE
#endif
