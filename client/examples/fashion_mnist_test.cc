#include "client/examples/fashion_mnist.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace muster::examples {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Bytes = std::vector<uint8_t>;

void AppendNumber(Bytes& bytes, uint32_t number) {
  for (const int shift : {24, 16, 8, 0}) {
    bytes.push_back(static_cast<uint8_t>(number >> shift));
  }
}

// Three images, whose pixels are their index, 10 more, and 20 more.
Bytes ImagesFile(uint32_t magic = 0x803, uint32_t items = 3,
                 uint32_t rows = 28) {
  Bytes bytes;
  for (const uint32_t number : {magic, items, rows, 28u}) {
    AppendNumber(bytes, number);
  }
  for (int image = 0; image < 3; ++image) {
    bytes.insert(bytes.end(), kImagePixels, static_cast<uint8_t>(10 * image));
  }
  return bytes;
}

Bytes LabelsFile(const Bytes& labels = {9, 0, 5}) {
  Bytes bytes;
  AppendNumber(bytes, 0x801);
  AppendNumber(bytes, static_cast<uint32_t>(labels.size()));
  bytes.insert(bytes.end(), labels.begin(), labels.end());
  return bytes;
}

class FashionMnistTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* const test =
        ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = ::testing::TempDir() + "/" + test->name();
    std::filesystem::create_directories(folder_);
    WriteGzip(Images(), ImagesFile());
    WriteGzip(Labels(), LabelsFile());
  }

  std::string Images() const { return folder_ + "/train-images-idx3-ubyte.gz"; }
  std::string Labels() const { return folder_ + "/train-labels-idx1-ubyte.gz"; }

  static void WriteGzip(const std::string& path, const Bytes& bytes) {
    const gzFile file = gzopen(path.c_str(), "wb");
    ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
              static_cast<int>(bytes.size()));
    ASSERT_EQ(gzclose(file), Z_OK);
  }

  static Bytes ReadRaw(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return Bytes(std::istreambuf_iterator<char>(file), {});
  }

  static void WriteRaw(const std::string& path, const Bytes& bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }

  // Returns the text of the error on reading.
  std::string Error() const {
    try {
      ReadFashionMnist(folder_, FashionMnistPart::kTrain);
    } catch (const DatasetError& error) {
      return error.what();
    }
    return "no error";
  }

  std::string folder_;
};

TEST_F(FashionMnistTest, ReadsImagesAndLabels) {
  const LabelledImages images =
      ReadFashionMnist(folder_, FashionMnistPart::kTrain);
  ASSERT_EQ(images.size(), 3u);
  EXPECT_EQ(images.label(0), 9);
  EXPECT_EQ(images.label(2), 5);
  EXPECT_EQ(images.image(2).size(), 784u);
  EXPECT_EQ(images.image(1)[783], 10);
  EXPECT_EQ(images.image(2)[0], 20);
}

TEST_F(FashionMnistTest, MissingFileIsNamedWithThePackageThatHasIt) {
  std::filesystem::remove(Labels());
  EXPECT_THAT(Error(), AllOf(HasSubstr("\"" + Labels() + "\" cannot be opened"),
                             HasSubstr("No such file"),
                             HasSubstr("dataset-fashion-mnist")));
}

TEST_F(FashionMnistTest, TruncatedFileIsNamed) {
  Bytes raw = ReadRaw(Images());
  raw.resize(raw.size() / 2);
  WriteRaw(Images(), raw);
  EXPECT_THAT(Error(), AllOf(HasSubstr("\"" + Images() + "\" is damaged"),
                             HasSubstr("unexpected end of file")));
}

TEST_F(FashionMnistTest, EmptyFileIsNamed) {
  WriteRaw(Images(), {});
  EXPECT_EQ(Error(), "data set file \"" + Images() +
                         "\" is too short: 4 more bytes expected, 0 found");
}

TEST_F(FashionMnistTest, WrongChecksumIsFound) {
  Bytes raw = ReadRaw(Images());
  raw[raw.size() - 8] ^= 1;  // the CRC is before the length, at the end
  WriteRaw(Images(), raw);
  EXPECT_THAT(Error(), HasSubstr("\"" + Images() +
                                 "\" is damaged: incorrect data check"));
}

TEST_F(FashionMnistTest, WrongMagicNumberIsAnErrorWithBothNumbers) {
  WriteGzip(Images(), ImagesFile(/*magic=*/0x801));
  EXPECT_EQ(Error(), "data set file \"" + Images() +
                         "\" is not what it should be: magic number 0x00000803 "
                         "expected, 0x00000801 found");
}

TEST_F(FashionMnistTest, FewerItemsThanPromisedIsAnError) {
  WriteGzip(Images(), ImagesFile(0x803, /*items=*/4));
  EXPECT_THAT(Error(), HasSubstr("is too short: 3136 more bytes expected, "
                                 "2352 found"));
}

TEST_F(FashionMnistTest, MoreBytesThanPromisedIsAnError) {
  WriteGzip(Images(), ImagesFile(0x803, /*items=*/2));
  EXPECT_THAT(Error(), HasSubstr("is too long"));
}

TEST_F(FashionMnistTest, AbsurdNumberOfItemsIsAnErrorBeforeMemoryIsTaken) {
  WriteGzip(Images(), ImagesFile(0x803, /*items=*/0xffffffff));
  EXPECT_THAT(Error(), HasSubstr("claims to hold 4294967295 items"));
}

TEST_F(FashionMnistTest, ImagesOfAnotherShapeAreAnError) {
  WriteGzip(Images(), ImagesFile(0x803, 3, /*rows=*/32));
  EXPECT_THAT(Error(), HasSubstr("images of 32x28 pixels; 28x28 expected"));
}

TEST_F(FashionMnistTest, UnknownLabelIsAnErrorWithItsPlace) {
  WriteGzip(Labels(), LabelsFile({1, 10, 2}));
  EXPECT_THAT(Error(), HasSubstr("\"" + Labels() +
                                 "\" has label 10 at item 1; 0 to 9 expected"));
}

TEST_F(FashionMnistTest, AsManyLabelsAsImagesAreExpected) {
  WriteGzip(Labels(), LabelsFile({1, 2}));
  EXPECT_THAT(Error(),
              AllOf(HasSubstr("holds 3 images"), HasSubstr("holds 2 labels")));
}

}  // namespace
}  // namespace muster::examples
