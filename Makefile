# galvani: make help lists the targets. Everything is found by pkg-config and nvcc; what was chosen is printed.

comma    := ,
MPICC   ?= mpicc
PKG      = pkg-config
PYTHON  ?= $(firstword $(foreach p,python3 /usr/bin/python3,$(shell $(p) -c 'import h5py, numpy, pytest' 2>/dev/null && echo $(p))) python3)
MARCH   ?= native
DEBUG   ?= 0
SANITIZE ?=

# CUDA=auto builds the GPU backend where nvcc is found, CUDA=0 never, CUDA=1 fails without it.
CUDA      ?= auto
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc)))
NVCC      ?= $(if $(CUDA_HOME),$(CUDA_HOME)/bin/nvcc)
CU_SOURCES := $(wildcard kernels/*/*.cu src/*/*.cu)
# CUDA_ARCHS: sm numbers to compile for, all that the toolkit knows of these by default; 70-ptx leaves compute_70 PTX alone,
# which newer devices run just in time, on sm_70's code paths.
CUDA_KNOWN := 70 80 86 89 90 100
CUDA_ARCHS ?= $(if $(NVCC),$(filter $(CUDA_KNOWN),$(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch 2>/dev/null))))
ifeq ($(CUDA),auto)
  USE_CUDA := $(if $(and $(NVCC),$(CU_SOURCES)),1,0)
else
  USE_CUDA := $(CUDA)
endif

# V=1 shows the commands.
Q := $(if $(filter 1,$(V)),,@)

CONF  := $(if $(filter 1,$(USE_CUDA)),cuda)$(if $(filter 70-ptx,$(CUDA_ARCHS)),-70-ptx)$(if $(filter 1,$(USE_CUDA)),,cpu)$(if $(filter 1,$(DEBUG)),-debug)$(if $(SANITIZE),-asan)
BUILD := build/$(CONF)

PACKAGES := hdf5 jansson libpcre2-8 libutf8proc libxxhash libcrypto cairo
MISSING  := $(foreach p,$(PACKAGES) ,$(shell $(PKG) --exists $(p) 2>/dev/null || echo $(p)))
ifneq ($(strip $(MISSING)),)
ifeq ($(filter help clean,$(MAKECMDGOALS)),)
  $(error missing packages: $(MISSING). Run: bash scripts/deps.sh)
endif
endif

GIT_COMMIT := $(shell git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)

# Outputs are written only on success, which gcc cannot see through status_t: hence no-maybe-uninitialized.
WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wconversion -Werror -Wno-maybe-uninitialized
CPPFLAGS += -D_GNU_SOURCE -Isrc -Ikernels $(shell $(PKG) --cflags $(PACKAGES))
# A product is rounded before it is added: the reference gives the same bits whether or not a machine has FMA.
CFLAGS   += -std=c11 -ffp-contract=off $(if $(filter 1,$(DEBUG)),-O1,-O3) -g -march=$(MARCH) -fopenmp $(WARNINGS)
LDLIBS   += $(shell $(PKG) --libs $(PACKAGES)) -lm -lpthread -fopenmp
ifeq ($(USE_CUDA),1)
  CUDA_LIB := $(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib))
  NCCL_DIR := $(firstword $(foreach d,$(CUDA_HOME) /usr /usr/local,$(if $(wildcard $(d)/include/nccl.h),$(d))))
  GENCODE  := $(if $(filter 70-ptx,$(CUDA_ARCHS)),-gencode arch=compute_70$(comma)code=compute_70,$(foreach \
      a,$(CUDA_ARCHS),-gencode arch=compute_$(a)$(comma)code=sm_$(a)) -gencode \
      arch=compute_$(lastword $(CUDA_ARCHS))$(comma)code=compute_$(lastword $(CUDA_ARCHS)))
  NVCCFLAGS += -std=c++17 -O3 -lineinfo -Isrc -Ikernels -Xcompiler -Wall,-Wextra -Werror all-warnings $(GENCODE)
  CPPFLAGS += -DGALVANI_CUDA -isystem $(CUDA_HOME)/include
  LDLIBS   += -L$(CUDA_LIB) -Wl,-rpath,$(CUDA_LIB) -lcublas $(if $(wildcard $(CUDA_LIB)/libcudart_static.a),-lcudart_static \
      -ldl -lrt,-lcudart) -lstdc++
  ifneq ($(NCCL_DIR),)
    CPPFLAGS += -DGALVANI_NCCL -isystem $(NCCL_DIR)/include
    LDLIBS   += -lnccl
  endif
endif
ifneq ($(SANITIZE),)
  CFLAGS  += -fsanitize=$(SANITIZE) -fno-omit-frame-pointer
  LDFLAGS += -fsanitize=$(SANITIZE)
endif

SOURCES := $(filter-out src/cli/main.c,$(wildcard src/*/*.c kernels/*/*.c))
ifneq ($(USE_CUDA),1)
  SOURCES := $(filter-out %_cuda.c,$(SOURCES))
endif
OBJECTS := $(SOURCES:%.c=$(BUILD)/%.o) $(if $(filter 1,$(USE_CUDA)),$(CU_SOURCES:%.cu=$(BUILD)/%.cu.o))
MAIN    := $(BUILD)/src/cli/main.o
UNIT_SOURCES := $(wildcard tests/unit/test_*.c)
UNIT_TESTS   := $(UNIT_SOURCES:tests/unit/%.c=$(BUILD)/%)
FUZZ_SOURCES := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_TARGETS := $(FUZZ_SOURCES:tests/fuzz/%.c=build/fuzz/%)

PREFIX  ?= /usr/local
INSTALL := $(DESTDIR)$(PREFIX)

.PHONY: all install uninstall help unit unit-build check check-gpu asan fuzz format tidy headers golden model results shard-bench sm70-report clean
all: build/galvani

help:
	@echo 'make              build/galvani (CUDA=0: without the GPU backend; DEBUG=1: -O1; MARCH=x86-64-v3: for other machines)'
	@echo 'make install      program, manual page, completion for bash, configs, batch script; PREFIX=$(PREFIX), DESTDIR='
	@echo 'make unit         build and run the unit tests'
	@echo 'make check        all tests, as scripts/check.sh runs them'
	@echo 'make check-gpu    the tests that need a GPU (MPI=T: on T ranks)'
	@echo 'make asan         unit tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make fuzz         every fuzz target for FUZZ_SECONDS (60) seconds each'
	@echo 'make format       clang-format everything'
	@echo 'make tidy         clang-tidy on src/ and kernels/'
	@echo 'make headers      every header compiles alone, as C and as C++'
	@echo 'make sm70-report  compile every kernel for sm_70; registers, spills, stack and shared memory of each'
	@echo 'make model        bytes, launches and time of a decode step: measured on an H200, modelled for four V100'
	@echo 'make results      the tables and pictures of results/ from its bench.json and run files'
	@echo 'make golden       regenerate tests/golden (needs torch and transformers >= 5.16)'
	@echo 'make shard-bench  galvani shard on a generated 2 GB checkpoint against a plain copy'

build/galvani: $(BUILD)/galvani
	@ln -sf $(CONF)/galvani $@
	@echo 'built $@ ($(CONF); MPI: $(MPICC); HDF5: $(shell $(PKG) --modversion hdf5); $(if $(filter 1,$(USE_CUDA)),nvcc: $(NVCC) \
	    for $(CUDA_ARCHS); NCCL: $(or $(NCCL_DIR),not found),nvcc: not used))'

$(BUILD)/galvani: $(MAIN) $(OBJECTS)
	$(Q)$(MPICC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(Q)$(MPICC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

# The commit is compiled into one file, rebuilt when it changes.
$(BUILD)/commit: FORCE
	@mkdir -p $(@D); echo '$(GIT_COMMIT)' | cmp -s - $@ || echo '$(GIT_COMMIT)' > $@
$(BUILD)/src/trace/provenance.o: CPPFLAGS += -DGALVANI_COMMIT='"$(GIT_COMMIT)"'
$(BUILD)/src/trace/provenance.o: $(BUILD)/commit
FORCE:

$(BUILD)/test_%: $(BUILD)/tests/unit/test_%.o $(OBJECTS)
	$(Q)$(MPICC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

$(BUILD)/tests/gpu/%.o: tests/gpu/%.c
	@mkdir -p $(@D)
	$(MPICC) $(CPPFLAGS) -Itests $(CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/tests/unit/%.o: tests/unit/%.c
	@mkdir -p $(@D)
	$(Q)$(MPICC) $(CPPFLAGS) -Itests $(CFLAGS) -MMD -MP -c -o $@ $<

GPU_TESTS := $(patsubst tests/gpu/%.c,$(BUILD)/gpu/%,$(wildcard tests/gpu/test_*.c))
$(BUILD)/gpu/test_%: $(BUILD)/tests/gpu/test_%.o $(BUILD)/tests/gpu/gpu_support.o $(OBJECTS)
	@mkdir -p $(@D)
	$(MPICC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

# On a machine with a GPU: each op against the CPU reference, then whole models, on MPI ranks.
MPI ?= 1
check-gpu: $(GPU_TESTS) build/galvani
	PYTHON=$(PYTHON) bash scripts/check_gpu.sh $(MPI) $(BUILD)/gpu

$(BUILD)/galvani.1: $(BUILD)/galvani scripts/manual.sh
	$(Q)bash scripts/manual.sh man $(BUILD)/galvani > $@.new && mv $@.new $@
$(BUILD)/galvani.bash: $(BUILD)/galvani scripts/manual.sh
	$(Q)bash scripts/manual.sh completion $(BUILD)/galvani > $@.new && mv $@.new $@

install: build/galvani $(BUILD)/galvani.1 $(BUILD)/galvani.bash
	install -D -m 755 $(BUILD)/galvani $(INSTALL)/bin/galvani
	install -D -m 644 $(BUILD)/galvani.1 $(INSTALL)/share/man/man1/galvani.1
	install -D -m 644 $(BUILD)/galvani.bash $(INSTALL)/share/bash-completion/completions/galvani
	install -D -m 755 scripts/galvani.sbatch $(INSTALL)/share/galvani/galvani.sbatch
	install -D -m 644 -t $(INSTALL)/share/galvani/configs configs/*.json

uninstall:
	rm -f $(INSTALL)/bin/galvani $(INSTALL)/share/man/man1/galvani.1 $(INSTALL)/share/bash-completion/completions/galvani
	rm -rf $(INSTALL)/share/galvani

unit-build: $(UNIT_TESTS)
unit: $(UNIT_TESTS)
	@bash scripts/run_unit.sh $(UNIT_TESTS)

check:
	bash scripts/check.sh

asan:
	$(MAKE) CUDA=0 DEBUG=1 SANITIZE=address,undefined unit

# Fuzz targets are built by clang with its own instrumentation of all objects.
build/fuzz/%: tests/fuzz/%.c $(SOURCES)
	@mkdir -p $(@D)
	OMPI_CC=clang $(MPICC) $(CPPFLAGS) -DGALVANI_COMMIT='"$(GIT_COMMIT)"' -std=c11 -O1 -g -fsanitize=fuzzer,address,undefined -o $@ $(filter %.c,$^) \
	    $(filter-out -fopenmp,$(LDLIBS)) -l:libgomp.so.1
ifeq ($(USE_CUDA),1)
fuzz:
	$(MAKE) CUDA=0 fuzz
else
fuzz: $(FUZZ_TARGETS)
	@bash scripts/run_fuzz.sh $(FUZZ_TARGETS)
endif

format:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')

tidy:
	clang-tidy --quiet $(SOURCES) src/cli/main.c -- $(CPPFLAGS) -std=c11 $(shell $(MPICC) --showme:compile)

headers:
	@for header in $$(git ls-files 'src/*.h' 'kernels/*.h' $(if $(filter 1,$(USE_CUDA)),,':!*/check_cuda.h' ':!*/pinned_cuda.h')); do \
	    $(MPICC) $(CPPFLAGS) -std=c11 -Wall -Wextra -fsyntax-only -x c $$header || exit 1; \
	    OMPI_CXX=g++ mpicxx $(CPPFLAGS) -Wall -Wextra -fsyntax-only -x c++ $$header || exit 1; \
	done; echo 'every header compiles alone, as C and as C++'

golden:
	$(PYTHON) scripts/make_golden.py
	$(PYTHON) scripts/make_text_golden.py

# The toolkit's own nvcc where it knows sm_70, else one from packages.
SM70_HOME ?= $(if $(filter compute_70,$(shell $(NVCC) --list-gpu-arch 2>/dev/null)),$(CUDA_HOME),.cache/sm70)
sm70-report:
	@[ -x $(SM70_HOME)/bin/nvcc ] || bash scripts/sm70_toolchain.sh $(SM70_HOME)
	@$(PYTHON) scripts/sm70_report.py $(SM70_HOME)/bin/nvcc $(CU_SOURCES)

# The last results of each kind beside the model of them, then four V100 in both forms of the dense projections.
model: build/galvani
	@for file in $(sort $(wildcard results/*/bench.json)); do build/galvani model --measured $$file && echo || exit 1; done
	@for dense in q8 fp16; do build/galvani model --tp 4 --device V100 --dense $$dense && echo || exit 1; done

results: build/galvani
	@$(PYTHON) scripts/results.py

shard-bench: build/galvani
	bash scripts/shard_bench.sh

clean:
	rm -rf build

-include $(OBJECTS:.o=.d) $(MAIN:.o=.d) $(UNIT_SOURCES:%.c=$(BUILD)/%.d) $(wildcard $(BUILD)/tests/gpu/*.d)
