#include <algorithm>

#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/cuda/stream.h>

namespace fusegrad::detail {

Stream::Stream() : owned_(true) { FUSEGRAD_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }

Stream::Stream(Priority priority) : owned_(true) {
  int last = 0;
  int first = 0;  // smaller numbers come first
  FUSEGRAD_CUDA(cudaDeviceGetStreamPriorityRange(&last, &first));
  const int number = priority == Priority::last ? last : std::min(first + static_cast<int>(priority), last);
  FUSEGRAD_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, number));
}

Stream::Stream(CUstream_st* stream) : stream_(stream), owned_(stream == nullptr) {
  if (owned_) FUSEGRAD_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

Stream::~Stream() {
  if (owned_) drop_cuda_error(cudaStreamDestroy(stream_));
}

void Stream::synchronize() const { FUSEGRAD_CUDA(cudaStreamSynchronize(stream_)); }

bool Stream::is_idle() const {
  const cudaError_t status = cudaStreamQuery(stream_);
  if (status == cudaErrorNotReady) return drop_cuda_error(status), false;
  check_cuda(status, "cudaStreamQuery(stream_)", __FILE__, __LINE__);
  return true;
}

bool Stream::capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  FUSEGRAD_CUDA(cudaStreamIsCapturing(stream_, &status));
  return status != cudaStreamCaptureStatusNone;
}

int Stream::device() const {
  int device = 0;
  FUSEGRAD_CUDA(cudaStreamGetDevice(stream_, &device));
  return device;
}

Event::Event() { FUSEGRAD_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }

Event::~Event() { drop_cuda_error(cudaEventDestroy(event_)); }

void Event::record(CUstream_st* stream) { FUSEGRAD_CUDA(cudaEventRecord(event_, stream)); }

void Event::make_wait(CUstream_st* stream) const { FUSEGRAD_CUDA(cudaStreamWaitEvent(stream, event_, 0)); }

void Event::synchronize() const { FUSEGRAD_CUDA(cudaEventSynchronize(event_)); }

TimedEvent::TimedEvent() { FUSEGRAD_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDefault)); }

TimedEvent::~TimedEvent() { drop_cuda_error(cudaEventDestroy(event_)); }

void TimedEvent::record(CUstream_st* stream) { FUSEGRAD_CUDA(cudaEventRecord(event_, stream)); }

void TimedEvent::synchronize() const { FUSEGRAD_CUDA(cudaEventSynchronize(event_)); }

double TimedEvent::microseconds_since(const TimedEvent& before) const {
  float milliseconds = 0;
  FUSEGRAD_CUDA(cudaEventElapsedTime(&milliseconds, before.event_, event_));
  return 1000.0 * static_cast<double>(milliseconds);
}

}  // namespace fusegrad::detail
