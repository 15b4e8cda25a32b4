#include <vector>

#include <fusegrad/autograd/backend.h>
#include <fusegrad/autograd/uploads.h>

namespace fusegrad::detail {
namespace {

class PlainUploads final : public Uploads {
 public:
  PlainUploads(Backend& backend, std::size_t bytes) : backend_(backend), staging_(bytes) {}

  std::byte* stage() override { return staging_.data(); }
  void start(std::initializer_list<Piece> pieces) override {
    for (const Piece& piece : pieces) {
      backend_.copy_from_host(piece.to, staging_.data() + piece.offset, piece.bytes);
    }
  }
  void join() override {}

 private:
  Backend& backend_;
  std::vector<std::byte> staging_;
};

}  // namespace

std::unique_ptr<Uploads> Backend::uploads(std::size_t bytes, int) {
  return std::make_unique<PlainUploads>(*this, bytes);
}

}  // namespace fusegrad::detail
