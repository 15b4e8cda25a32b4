// What an error says.
#pragma once

#include <string>

#include <gtest/gtest.h>

namespace fusegrad::test {

/// The message of the E that `call` throws; a failure of the test if it throws none.
template <class E, class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no exception";
  return "";
}

}  // namespace fusegrad::test
