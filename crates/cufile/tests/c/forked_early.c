/* Forks before the library is used: the child uses it as any program does. */
#define _GNU_SOURCE
#include "interface.h"
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    EXPECT(argc == 2);
    pid_t child = fork();
    int fd = open(argv[1], O_RDONLY);
    CUfileHandle_t file;
    CUfileDescr_t description = of_descriptor(fd);
    char memory[100];
    EXPECT(cuFileDriverOpen().err == 0 && cuFileHandleRegister(&file, &description).err == 0);
    EXPECT(cuFileRead(file, memory, 100, 0, 0) == 100 && cuFileDriverClose_v2().err == 0);
    if (child != 0) {
        int status = -1;
        EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        printf("both read\n");
    }
    return 0;
}
