// Runs a file that `octavo compile` wrote: run_executable FILE INPUT OUTPUT ROWS ; raw float32, the inputs of each
// row one behind the other, and so the outputs.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;

struct Heap {
  void AllocData(DLTensor* tensor) { tensor->data = std::aligned_alloc(64, (ffi::GetDataSize(*tensor) + 63) / 64 * 64); }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

ffi::Tensor empty(std::vector<int64_t> shape, DLDataType dtype) {
  return ffi::Tensor::FromNDAlloc(Heap(), ffi::Shape(shape), dtype, DLDevice{kDLCPU, 0});
}

// The lists of numbers behind each "shape": from `start` to `end` of the JSON; a program of yours has a parser.
std::vector<std::vector<int64_t>> shapes(const std::string& json, size_t start, size_t end) {
  std::vector<std::vector<int64_t>> found;
  const std::string key = "\"shape\":[";
  for (size_t at = json.find(key, start); at < end; at = json.find(key, at + 1)) {
    std::stringstream text(json.substr(at + key.size(), json.find(']', at) - at - key.size()));
    found.emplace_back();
    for (std::string number; std::getline(text, number, ',');) found.back().push_back(std::stoll(number));
  }
  return found;
}

int main(int argc, char** argv) {
  std::ifstream file(argv[1], std::ios::binary);
  std::string data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  uint64_t sizes[3];  // library, constants, description; then SHA-256 and 16 bytes of magic
  std::memcpy(sizes, data.data() + data.size() - 72, sizeof(sizes));
  std::string json = data.substr(sizes[0] + sizes[1], sizes[2]);
  DLDataType byte{kDLUInt, 8, 1}, real{kDLFloat, 32, 1};
  ffi::Tensor constants = empty({static_cast<int64_t>(sizes[1])}, byte);
  std::memcpy(constants.data_ptr(), data.data() + sizes[0], sizes[1]);
  ffi::Tensor workspace = empty({std::stoll(json.substr(json.find("\"workspace\":") + 12)) + 1}, byte);
  size_t inputs_at = json.find("\"inputs\":"), outputs_at = json.find("\"outputs\":");  // sorted by key
  ffi::Module library = ffi::Module::LoadFromFile(argv[1]);
  ffi::Function run = library->GetFunction("octavo_main").value();
  std::ifstream input(argv[2], std::ios::binary);
  std::ofstream output(argv[3], std::ios::binary);
  for (int row = 0; row < std::atoi(argv[4]); row++) {
    std::vector<ffi::Tensor> inputs, outputs;
    for (auto& shape : shapes(json, inputs_at, json.find("\"isa\":"))) inputs.push_back(empty(shape, real));
    for (auto& shape : shapes(json, outputs_at, json.find("\"shared_units\":"))) outputs.push_back(empty(shape, real));
    for (auto& x : inputs) input.read(static_cast<char*>(x.data_ptr()), ffi::GetDataSize(x));
    std::vector<ffi::AnyView> arguments(inputs.begin(), inputs.end());
    arguments.push_back(constants);
    arguments.push_back(workspace);
    arguments.insert(arguments.end(), outputs.begin(), outputs.end());
    ffi::Any nothing;
    run.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &nothing);
    for (auto& y : outputs) output.write(static_cast<const char*>(y.data_ptr()), ffi::GetDataSize(y));
  }
  return input && output ? 0 : 1;
}
