// What torch asks of CUDA before it launches kernels, where there is none. Under FakeTensorMode nothing is launched.
// torch takes its hooks while it is loaded. Until plug_in() is called, these answer as those of a build without CUDA.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

const Device ONLY{DeviceType::CUDA, 0};

// The one that does nothing answers with a device of no number, and refuses events.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device getDevice() const override { return ONLY; }
  Device exchangeDevice(Device) const override { return ONLY; }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, ONLY); }
  Stream getNewStream(Device, int) const override { return Stream(Stream::DEFAULT, ONLY); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, ONLY); }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};

bool plugged = false;

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {
    if (!plugged) CUDAHooksInterface::init();
  }
  bool isBuilt() const override { return plugged; }
  bool isAvailable() const override { return plugged; }
  bool hasCUDA() const override { return plugged; }
  bool hasPrimaryContext(DeviceIndex index) const override {
    return plugged || CUDAHooksInterface::hasPrimaryContext(index);
  }
  int getNumGPUs() const override { return plugged; }
  DeviceIndex deviceCount() const override { return plugged; }
  DeviceIndex current_device() const override { return plugged ? 0 : -1; }
  DeviceIndex getCurrentDevice() const override { return plugged ? 0 : -1; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return plugged ? 0 : -1; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return plugged ? 0 : -1; }
  void deviceSynchronize(DeviceIndex) const override {}
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return plugged ? at::detail::getDefaultCPUGenerator() : CUDAHooksInterface::getDefaultGenerator(index);
  }
};

}  // namespace

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)
}

extern "C" void plug_in() {
  static Guard guard;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)].store(&guard);
  plugged = true;
}
