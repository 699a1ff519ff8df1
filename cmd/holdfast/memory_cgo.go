//go:build cgo

package main

// #include <malloc.h>
//
// // By default the C library keeps a heap for each thread, and a block of the engine's
// // cache that one thread frees does not help another: 24 MB become 80. This has to be
// // said before there are threads.
// __attribute__((constructor)) static void one_heap(void) {
// #ifdef M_ARENA_MAX
// 	mallopt(M_ARENA_MAX, 1);
// #endif
// }
import "C"

// engineInGo tells that the embedded engine has its cache and memtables from C.
const engineInGo = false
