// Runs a library that TVM exported: run_library LIBRARY INPUT OUTPUT ROWS D0 D1 ... ; raw float32 of ROWS inputs of shape D0 x D1 ...
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>

#include <cstdlib>
#include <fstream>
#include <vector>

namespace ffi = tvm::ffi;

struct Heap {
  void AllocData(DLTensor* tensor) { tensor->data = std::aligned_alloc(64, (ffi::GetDataSize(*tensor) + 63) / 64 * 64); }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

int main(int argc, char** argv) {
  ffi::Module library = ffi::Module::LoadFromFile(argv[1]);
  ffi::Module machine = library->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  machine->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, 2);
  ffi::Function run = machine->GetFunction("main").value();
  std::vector<int64_t> shape;
  for (int i = 5; i < argc; i++) shape.push_back(std::atoll(argv[i]));
  std::ifstream input(argv[2], std::ios::binary);
  std::ofstream output(argv[3], std::ios::binary);
  for (int row = 0; row < std::atoi(argv[4]); row++) {
    ffi::Tensor x = ffi::Tensor::FromNDAlloc(Heap(), ffi::Shape(shape), DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCPU, 0});
    input.read(static_cast<char*>(x.data_ptr()), ffi::GetDataSize(x));
    ffi::Any result = run(x);
    ffi::Tensor y = result.as<ffi::Tensor>().has_value() ? result.cast<ffi::Tensor>() : result.cast<ffi::Array<ffi::Tensor>>()[0];
    output.write(static_cast<const char*>(y.data_ptr()), ffi::GetDataSize(y));
  }
  return input && output ? 0 : 1;
}
