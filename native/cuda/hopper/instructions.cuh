// Hopper's own instructions: barriers in shared memory, the copy engine and the tensor cores.
//
// A barrier's phases have parities 0, 1, 0, ...; `wait` returns when the phase of a parity is over.
// Only code compiled for sm_90a contains them.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace grace::hopper {

// Waits until the kernel before has ended and its results can be read. Then the kernel after this
// one may take its places (kernels/triton_parts.py).
__device__ inline void await_kernel_before() {
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
}

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void init_barrier(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}

// Shows barriers just made to the copy engine.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Arrives, and makes the phase last until `bytes` have been copied to this barrier's data.
__device__ inline void arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

__device__ inline void wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
      "@!over bra again;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Copies a box of a matrix, whose first element is at (column, row), to shared memory.
__device__ inline void load_box(void* to, const CUtensorMap& matrix, uint64_t* barrier, int column,
                                int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4}], [%2];" ::"r"(shared_address(to)),
      "l"(&matrix), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
}

// Copies a box of shared memory back. What lies outside of the matrix is not written.
__device__ inline void store_box(const CUtensorMap& matrix, const void* from, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&matrix),
      "r"(shared_address(from)), "r"(column), "r"(row)
      : "memory");
}

// Waits until this thread's stores have read shared memory.
__device__ inline void wait_until_read() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Waits until this thread's stores have arrived in memory.
__device__ inline void wait_until_stored() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Shows what this thread wrote to shared memory to the copy engine.
__device__ inline void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Four 8 x 8 matrices of 16-bit numbers. Lane l has the address of row l % 8 of matrix l / 8, and
// of each matrix the two numbers at row l / 4, columns 2 (l % 4) and the next.
__device__ inline void load_matrices(uint32_t (&numbers)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(numbers[0]), "=r"(numbers[1]), "=r"(numbers[2]), "=r"(numbers[3])
               : "r"(row));
}

__device__ inline void store_matrices(uint32_t row, const uint32_t (&numbers)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(numbers[0]), "r"(numbers[1]), "r"(numbers[2]), "r"(numbers[3]));
}

// A matrix in shared memory for the tensor cores: rows of 128 bytes, swizzled as the copy engine
// does for 128 bytes, at an address that is a multiple of 1,024. Adding 2 moves on by 32 bytes.
__device__ inline uint64_t descriptor(const void* matrix) {
  constexpr uint64_t kEightRows = 1024 >> 4, kSwizzle128 = 1;
  return (shared_address(matrix) >> 4) | kEightRows << 32 | kSwizzle128 << 62;
}

__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `kPending` committed groups are under way.
template <int kPending>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of the sums before a wait.
template <int kSums>
__device__ inline void settle(float (&sums)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// d = a b^T, or with `keep` d += a b^T, of 64 rows, 128 columns and 32 terms in e4m3.
#define GRACE_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GRACE_SUMS_16(i) \
  GRACE_SUMS_4(i), GRACE_SUMS_4(i + 4), GRACE_SUMS_4(i + 8), GRACE_SUMS_4(i + 12)
#define GRACE_SUMS_64(i) \
  GRACE_SUMS_16(i), GRACE_SUMS_16(i + 16), GRACE_SUMS_16(i + 32), GRACE_SUMS_16(i + 48)
__device__ inline void add_product(float (&d)[64], uint64_t a, uint64_t b, bool keep) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, keep, 1, 1;\n}"
      : GRACE_SUMS_64(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(keep)));
}

#undef GRACE_SUMS_4
#undef GRACE_SUMS_16
#undef GRACE_SUMS_64

}  // namespace grace::hopper
