// Copyright: (c) 2026, the gpu_fleet.node contributors
// SPDX-License-Identifier: GPL-3.0-or-later
//
// The yardstick for the bandwidth check: a bare loop of pinned copies, and of copies on the device, with nothing around it.
// Prints one JSON object with the medians in GB/s (10^9 bytes).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <vector>

static void must(cudaError_t code) {
  if (code != cudaSuccess) {
    std::fprintf(stderr, "copy_loop: %s\n", cudaGetErrorString(code));
    std::exit(1);
  }
}

static double rate(void *to, const void *from, size_t size, cudaMemcpyKind kind, int samples) {
  const int copies = 4;
  cudaEvent_t first, last;
  must(cudaEventCreate(&first));
  must(cudaEventCreate(&last));
  std::vector<double> rates;
  for (int sample = 0; sample < samples + 2; ++sample) {
    must(cudaEventRecord(first));
    for (int copy = 0; copy < copies; ++copy)
      must(cudaMemcpyAsync(to, from, size, kind));
    must(cudaEventRecord(last));
    must(cudaEventSynchronize(last));
    float milliseconds = 0;
    must(cudaEventElapsedTime(&milliseconds, first, last));
    if (sample >= 2)
      rates.push_back(size * copies / (milliseconds * 1e-3) / 1e9);
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

int main(int argc, char **argv) {
  const size_t size = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 256) << 20;
  const int samples = argc > 2 ? std::atoi(argv[2]) : 12;
  void *host, *device, *other;
  must(cudaHostAlloc(&host, size, cudaHostAllocDefault));
  std::fill(static_cast<char *>(host), static_cast<char *>(host) + size, 1);
  must(cudaMalloc(&device, 4 * size));
  must(cudaMalloc(&other, 4 * size));
  must(cudaMemset(device, 1, 4 * size));
  const double up = rate(device, host, size, cudaMemcpyHostToDevice, samples);
  const double down = rate(host, device, size, cudaMemcpyDeviceToHost, samples);
  const double on = 2 * rate(other, device, 4 * size, cudaMemcpyDeviceToDevice, samples);
  std::printf("{\"host_to_device_pinned\": %.3f, \"device_to_host_pinned\": %.3f, \"device_to_device\": %.3f}\n", up, down, on);
  return 0;
}
