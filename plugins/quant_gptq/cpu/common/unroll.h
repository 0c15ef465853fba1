// FACET_UNROLL before a loop of constant length over registers. GCC keeps arrays of vectors in memory unless the loops
// over them are gone early; its own unrolling at -O3 comes too late.
#pragma once

#if defined(__clang__)
#define FACET_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define FACET_UNROLL _Pragma("GCC unroll 16")
#else
#define FACET_UNROLL
#endif
