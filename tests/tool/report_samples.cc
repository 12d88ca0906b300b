// SPDX-License-Identifier: Apache-2.0
//
// report_samples <folder>: writes the reports of report_sample.h there, one HTML file each.
#include <fstream>
#include <iostream>
#include <string>

#include "report.h"
#include "tests/tool/report_sample.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: report_samples <folder>\n";
    return 2;
  }
  for (const quire::testing::ReportSample& sample : quire::testing::report_samples()) {
    const std::string path = std::string(argv[1]) + "/" + sample.name + ".html";
    std::ofstream file(path, std::ios::binary);
    file << quire::html_of(sample.input());
    file.close();
    if (!file) {
      std::cerr << "could not write " << path << "\n";
      return 1;
    }
  }
  return 0;
}
