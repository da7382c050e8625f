/* CANN over host memory: enough of it for torch_npu to be imported and to move bytes, and nothing that computes.

   "Device" memory is malloc, copies are memcpy, streams and events are always done. An operator that CANN would
   compile is refused by name. The devices are AREAL_HOST_NPUS many (8), or those ASCEND_RT_VISIBLE_DEVICES names. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_DEVICES 64
#define OUT_OF_MEMORY 207001
#define REFUSED 500002
#define NOTHING(name) int name(void) { return 0; }
#define NEVER(name) int name(void) { fprintf(stderr, "CANN over host memory: %s refused\n", #name); return REFUSED; }

static __thread int current = 0;
static int contexts[MAX_DEVICES];

/* --- life, devices, contexts */
int aclInit(const char *config) { return 0; }
int aclFinalize(void) { return 0; }
int aclrtGetDeviceCount(uint32_t *count) {
    const char *named = getenv("ASCEND_RT_VISIBLE_DEVICES"), *asked = getenv("AREAL_HOST_NPUS");
    if (named) {
        *count = *named != 0;
        for (; *named; named++) *count += *named == ',';
    } else {
        *count = asked ? atoi(asked) : 8;
    }
    return 0;
}
int aclrtSetDevice(int device) { current = device; return 0; }
int aclrtGetDevice(int *device) { *device = current; return 0; }
int aclrtResetDevice(int device) { return 0; }
const char *aclrtGetSocName(void) { return "Ascend910B3"; }
int aclrtGetCurrentContext(void **context) { *context = &contexts[current]; return 0; }
int aclrtSetCurrentContext(void *context) { current = (int *)context - contexts; return 0; }
int aclrtGetPrimaryCtxState(int device, uint32_t *flags, int *active) { *active = 1; return 0; }
int aclrtDeviceCanAccessPeer(int *can, int left, int right) { *can = 1; return 0; }
int aclrtDeviceGetBareTgid(int *pid) { *pid = getpid(); return 0; }
int aclGetDeviceCapability(uint32_t device, int item, int64_t *value) { *value = 1; return 0; }
const char *aclGetRecentErrMsg(void) { return "CANN over host memory"; }
NOTHING(aclrtDeviceEnablePeerAccess)
NOTHING(aclrtSetDeviceSatMode)
NOTHING(aclrtSetSysParamOpt)
NOTHING(aclrtCtxSetSysParamOpt)
NOTHING(aclrtGetSysParamOpt)
NOTHING(aclrtGetLastError)
NOTHING(aclrtPeekAtLastError)

/* --- memory */
int aclrtMalloc(void **memory, size_t size, int policy) {
    *memory = NULL;
    return posix_memalign(memory, 512, size ? size : 512) ? OUT_OF_MEMORY : 0;
}
int aclrtMallocAlign(void **memory, size_t size, int policy) { return aclrtMalloc(memory, size, policy); }
int aclrtMallocAlign32(void **memory, size_t size, int policy) { return aclrtMalloc(memory, size, policy); }
int aclrtFree(void *memory) { free(memory); return 0; }
int aclrtMallocHost(void **memory, size_t size) { return posix_memalign(memory, 64, size ? size : 64) ? OUT_OF_MEMORY : 0; }
int aclrtFreeHost(void *memory) { free(memory); return 0; }
int aclrtMemcpy(void *to, size_t room, const void *from, size_t size, int kind) { memmove(to, from, size); return 0; }
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size, int kind, void *stream) { memmove(to, from, size); return 0; }
int aclrtMemset(void *memory, size_t room, int value, size_t size) { memset(memory, value, size); return 0; }
int aclrtMemsetAsync(void *memory, size_t room, int value, size_t size, void *stream) { memset(memory, value, size); return 0; }
int aclrtGetMemInfo(int kind, size_t *left, size_t *whole) { *whole = (size_t)8 << 30; *left = (size_t)7 << 30; return 0; }
int aclrtGetMemUceInfo(int device, void *found, size_t room, size_t *count) { *count = 0; return 0; }
NOTHING(aclrtReserveMemAddress)
NOTHING(aclrtReleaseMemAddress)
NOTHING(aclrtMapMem)
NOTHING(aclrtUnmapMem)
NOTHING(aclrtMallocPhysical)
NOTHING(aclrtFreePhysical)
NOTHING(aclrtMemExportToShareableHandle)
NOTHING(aclrtMemImportFromShareableHandle)
NOTHING(aclrtMemSetPidToShareableHandle)
NOTHING(aclrtHostUnregister)

/* --- streams and events: everything was done when it was asked for */
int aclrtCreateStream(void **stream) { *stream = malloc(8); return 0; }
int aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flags) { *stream = malloc(8); return 0; }
int aclrtDestroyStream(void *stream) { free(stream); return 0; }
int aclrtDestroyStreamForce(void *stream) { free(stream); return 0; }
int aclrtStreamQuery(void *stream, int *status) { *status = 0; return 0; }
int aclrtStreamGetId(void *stream, int32_t *id) { *id = (int32_t)(intptr_t)stream; return 0; }
int aclrtCreateEventExWithFlag(void **event, uint32_t flags) { *event = malloc(8); return 0; }
int aclrtCreateEventWithFlag(void **event, uint32_t flags) { *event = malloc(8); return 0; }
int aclrtDestroyEvent(void *event) { free(event); return 0; }
int aclrtEventElapsedTime(float *milliseconds, void *from, void *to) { *milliseconds = 0.0f; return 0; }
int aclrtQueryEventStatus(void *event, int *status) { *status = 1; return 0; }
int aclrtQueryEventWaitStatus(void *event, int *status) { *status = 0; return 0; }
NOTHING(aclrtSynchronizeDevice)
NOTHING(aclrtSynchronizeDeviceWithTimeout)
NOTHING(aclrtSynchronizeStream)
NOTHING(aclrtSynchronizeStreamWithTimeout)
NOTHING(aclrtSynchronizeEvent)
NOTHING(aclrtRecordEvent)
NOTHING(aclrtResetEvent)
NOTHING(aclrtStreamWaitEvent)
NOTHING(aclrtProcessReport)
NOTHING(aclrtSubscribeReport)
NOTHING(aclrtUnSubscribeReport)
NOTHING(aclrtSetOpWaitTimeout)
NOTHING(aclrtSetOpExecuteTimeOut)
NOTHING(aclrtSetStreamFailureMode)

/* --- operators: descriptions are taken, and what they describe is refused */
int aclopCompileAndExecute(const char *operator, ...) {
    fprintf(stderr, "CANN over host memory: operator %s refused\n", operator);
    return REFUSED;
}
void *aclopCreateAttr(void) { return malloc(8); }
void aclopDestroyAttr(void *attribute) { free(attribute); }
void *aclCreateDataBuffer(void *data, size_t size) { return malloc(8); }
int aclDestroyDataBuffer(void *buffer) { free(buffer); return 0; }
void *aclCreateTensorDesc(int type, int rank, const int64_t *shape, int format) { return malloc(8); }
void aclDestroyTensorDesc(void *description) { free(description); }
size_t aclGetTensorDescNumDims(void *description) { return 0; }
size_t aclGetCompileoptSize(int option) { return 256; }
int aclGetCompileopt(int option, char *value, size_t room) { if (room) value[0] = 0; return 0; }
int aclSetCompileopt(int option, const char *value) { return 0; }
NOTHING(aclGetTensorDescDimV2)
NOTHING(aclGetTensorDescFormat)
NOTHING(aclGetTensorDescType)
NOTHING(aclSetTensorDescName)
NOTHING(aclSetTensorFormat)
NOTHING(aclSetTensorPlaceMent)
NOTHING(aclSetTensorShape)
NOTHING(aclopSetCompileFlag)
NOTHING(aclopSetAttrBool)
NOTHING(aclopSetAttrDataType)
NOTHING(aclopSetAttrFloat)
NOTHING(aclopSetAttrInt)
NOTHING(aclopSetAttrListBool)
NOTHING(aclopSetAttrListFloat)
NOTHING(aclopSetAttrListInt)
NOTHING(aclopSetAttrListListInt)
NOTHING(aclopSetAttrString)
NOTHING(aclrtBinaryGetFunction)
NOTHING(aclrtBinaryLoadFromData)
NOTHING(aclrtGetFunctionAddr)
NOTHING(rtDevBinaryRegister)
NOTHING(rtFunctionRegister)
NOTHING(rtGetC2cCtrlAddr)
NEVER(rtKernelLaunch)

/* --- dumps, logs, profiles: nobody reads them */
void aclAppLog(int level, const char *function, const char *file, uint32_t line, const char *format, ...) {}
uint64_t MsprofGetHashId(const char *text, size_t size) { return 0; }
uint64_t MsprofSysCycleTime(void) { return 0; }
NOTHING(MsprofRegisterCallback)
NOTHING(MsprofReportAdditionalInfo)
NOTHING(MsprofReportApi)
NOTHING(MsprofReportCompactInfo)
NOTHING(aclmdlInitDump)
NOTHING(aclmdlSetDump)
NOTHING(aclmdlFinalizeDump)
